"""Results of `walltime` and theory's expectations, for tables 2, 4 and the figures."""

from dataclasses import dataclass
from typing import Any

from benchmarks.paper.estimators import Estimate, ratio_of_sums
from benchmarks.paper.walltime import PLAIN
from paceline.theory import speedup, tokens_per_round

MODEL_DRAFTERS = ("draft model", "target in int8")


@dataclass(frozen=True, slots=True)
class Speed:
    task: str
    drafter: str
    temperature: int
    gamma: int
    # Accepted of decided drafts, with the error over prompts.
    alpha: Estimate
    # Of decided drafts.
    decided: int
    # Per target run with a proposal.
    tokens_a_run: float
    # Share of the target's runs in which something was proposed.
    drafted_share: float
    # Time over plain decoding's, the other way round: with the error over prompts.
    speed: Estimate
    # A draft step over a plain run of the target; a run with drafts over one without; messages, waiting and all else of
    # a round, over the same.
    c: float
    verify: float
    overhead: float

    @property
    def expected(self) -> float:
        """Theorem 3.8. A run without a proposal yields one token."""
        share = self.drafted_share
        tokens = share * tokens_per_round(self.alpha.mean, self.gamma) + 1 - share
        return tokens / (share * self.c * self.gamma + 1)

    @property
    def expected_here(self) -> float:
        """Theorem 3.8 with the measured time of gamma + 1 rows instead of one, and with RPCs and event loops."""
        share = self.drafted_share
        tokens = share * tokens_per_round(self.alpha.mean, self.gamma) + 1 - share
        return tokens / (share * self.c * self.gamma + self.verify + self.overhead)

    @property
    def in_theory(self) -> float:
        """Theorem 3.8 for a drafter that always proposes."""
        return speedup(self.alpha.mean, self.gamma, self.c)


def speeds_of(*parts: list[dict[str, Any]]) -> list[Speed]:
    """Returns all modes of all parts, each with its part's plain decoding."""
    found = []
    for part in parts:
        plain = {(each["task"], each["temperature"]): each["prompts"] for each in part if each["way"] == PLAIN}
        found += [_speed(each, plain[each["task"], each["temperature"]]) for each in part if each["way"] != PLAIN]
    return found


def _speed(way: dict[str, Any], plain: list[dict[str, float]]) -> Speed:
    drafter, _, gamma = way["way"].rpartition(", ")
    prompts = way["prompts"]

    def total(figure: str, of: list[dict[str, float]] = prompts) -> float:
        return sum(each[figure] for each in of)

    plain_round_ms = total("ms", plain) / total("rounds", plain)
    rounds, proposed = total("rounds"), total("proposed")
    step_ms = total("draft_ms") / proposed if proposed and drafter in MODEL_DRAFTERS else 0.0
    rest_ms = (total("ms") - total("draft_ms") - total("target_ms")) / rounds
    # Tokens alike: each prompt's time a token.
    per_token = [[each["ms"] / each["tokens"] for each in of] for of in (plain, prompts)]
    drafted = total("drafted rounds")
    return Speed(
        task=way["task"],
        drafter=drafter,
        temperature=way["temperature"],
        gamma=int(gamma),
        alpha=ratio_of_sums([each["accepted"] for each in prompts], [each["decided"] for each in prompts])
        if total("decided")
        else Estimate(0.0, 0.0),
        decided=int(total("decided")),
        tokens_a_run=(total("accepted") + drafted) / drafted if drafted else 1.0,
        drafted_share=drafted / rounds,
        speed=ratio_of_sums(*per_token),
        c=step_ms / plain_round_ms,
        verify=total("target_ms") / rounds / plain_round_ms,
        overhead=rest_ms / plain_round_ms,
    )
