"""Accepts or rejects drafts: pure arithmetic, no I/O. Defines the terms of all other files.

    proposal    k draft tokens: first those that were looked up, then those that were sampled, with q on a support for each
    verify_result  the target's own tokens (`match`); under `rejection` p on those supports for the sampled drafts
    outcome     the accepted tokens and one more
    recovered   drawn in place of the first rejected draft
    bonus       drawn after all drafts were accepted
    target      drawn in a round without drafts
    forced      the only token that the output's format allows: appended without a round

p and q are the distributions after sampling transforms. The output follows p exactly, whatever the drafter: Leviathan,
Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", Algorithm 1 and appendix A.1.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.reports import NO_DRAFT_REPORT, NO_VERIFY_REPORT, DraftReport, VerifyReport
from paceline.checks import require
from paceline.noise import Purpose, make_key, uniform
from paceline.results import TokenLogprobs
from paceline.speculation_params import Rule


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at a position. Under `rejection` the candidates are the support and the token drawn outside it."""

    candidates: dict[int, float]
    top_token_ids: list[int]
    top_logprobs: list[float]

    def of(self, token: int) -> TokenLogprobs:
        return TokenLogprobs(self.candidates[token], self.top_token_ids, self.top_logprobs)


Floats = NDArray[np.floating[Any]]


class Origin(enum.StrEnum):
    """A `StrEnum`: its table lookup, once per token, is faster than that of an `Enum`."""

    ACCEPTED = "A"
    RECOVERED = "R"
    BONUS = "B"
    TARGET = "T"
    FORCED = "F"


# What every round makes is not frozen, for that takes three times as long.
@dataclass(slots=True)
class Proposal:
    """k draft tokens, with a support for each of the last ones if these were sampled."""

    tokens: list[int] = field(default_factory=list)
    supports: list[NDArray[np.int64]] = field(default_factory=list)
    support_probs: list[Floats] = field(default_factory=list)
    report: DraftReport = NO_DRAFT_REPORT
    # Per draft: whether the output's format allows no other; empty without one.
    is_forced: list[bool] = field(default_factory=list)
    # Adds the next Propose to the round's Verify, given the link to the target (`coordinator.drafters.following`).
    ask_next: Callable[[Any, Any], None] | None = None
    # Drafts that the target's head is to make behind the round, and the joint confidence below which it stops.
    num_next: int = 0
    next_min_probability: float = 0.0
    # Rounds that the target goes on with by itself behind this one.
    num_more_rounds: int = 0
    # Whether the drafts need not interrupt a target that goes on by itself; and whether it is to wait for what comes then.
    may_come_late: bool = False
    stops_target: bool = False

    def __len__(self) -> int:
        return len(self.tokens)

    def num_choices(self, num_tokens: int | None = None) -> int:
        """Returns how many of the first `num_tokens` drafts, or of all, are not forced."""
        return len(self.tokens[:num_tokens]) - sum(self.is_forced[:num_tokens])

    def first_choices(self, num_choices: int) -> "Proposal":
        """Returns the first `num_choices` choices with the tokens that they force."""
        if not self.is_forced:
            num_tokens = num_choices
        else:
            choices = [at for at, is_forced in enumerate(self.is_forced) if not is_forced]
            num_tokens = choices[num_choices] if num_choices < len(choices) else len(self.tokens)
        num_sampled = max(0, num_tokens - (len(self.tokens) - len(self.supports)))
        return replace(
            self, tokens=self.tokens[:num_tokens], supports=self.supports[:num_sampled],
            support_probs=self.support_probs[:num_sampled], is_forced=self.is_forced[:num_tokens],
        )  # fmt: skip

    def checked_by(self, rule: Rule) -> Rule:
        """Returns the rule to verify by: `match` if no draft was sampled."""
        return rule if self.supports else Rule.MATCH

    def num_matched(self, rule: Rule) -> int:
        """Returns how many drafts, the first ones, have to equal the target's own draws.

        Under `rejection` those without q. A one-hot q would do only if the draft said nothing of the noise that judges it,
        and an earlier answer to the same seed does.
        """
        return len(self.tokens) - (len(self.supports) if rule is Rule.REJECTION else 0)


@dataclass(slots=True)
class VerifyResult:
    """k + 1 tokens under `match`.

    Under `rejection`, a token per draft that was looked up, and the bonus token; per sampled draft, p on its support, the
    mass outside, and a token drawn there.
    """

    tokens: list[int]
    support_probs: list[Floats] = field(default_factory=list)
    outside_masses: list[float] = field(default_factory=list)
    outside_tokens: list[int] = field(default_factory=list)
    # Greedy with lenience, per draft: accepted although not the most likely token, as the target's `TorchSampler` decides.
    lenient_accepts: list[bool] = field(default_factory=list)
    # One per position if requested.
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    rule: Rule = Rule.MATCH
    # In (0, 1]; 1 is lossless.
    lenience: float = 1.0
    # The first position at which the output's format and the request's token lists leave no token.
    first_invalid_position: int | None = None
    report: VerifyReport = NO_VERIFY_REPORT

    @property
    def choices(self) -> list[int]:
        """Returns the token that the target has drawn at each of the k + 1 positions."""
        return [*self.tokens[:-1], *self.outside_tokens, self.tokens[-1]]


class Comparison(NamedTuple):
    """A draft under `rejection`: accepted if r * lenience * q < p, with uniform r."""

    q: float
    p: float
    r: float


@dataclass(slots=True)
class Outcome:
    tokens: list[int]
    num_accepted: int
    last_origin: Origin
    # One per token if requested.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    # Under `rejection`: one per decided draft that was sampled.
    comparisons: list[Comparison] = field(default_factory=list, compare=False)

    @property
    def origins(self) -> list[Origin]:
        return [Origin.ACCEPTED] * self.num_accepted + [self.last_origin]


@dataclass(slots=True)
class RoundNoise:
    """Uniforms of a round, keyed by its first position (`paceline.noise`)."""

    seed: int
    round_start: int

    def uniform(self, index: int, purpose: Purpose) -> float:
        """Returns a uniform in (0, 1)."""
        return uniform(make_key(self.seed, self.round_start, self.round_start + index, purpose))


def accept(proposal: Proposal, verify_result: VerifyResult, noise: RoundNoise) -> Outcome:
    """Decides a round. Lenience below 1 bounds each token's probability by p / lenience (appendix A.5)."""
    num_matched = proposal.num_matched(verify_result.rule)
    outcome = _first_mismatch(proposal, verify_result, num_matched) or _accept_by_ratio(
        proposal, verify_result, noise, num_matched
    )
    if not verify_result.logprobs:
        return outcome
    logprobs = [at.of(token) for at, token in zip(verify_result.logprobs, outcome.tokens, strict=False)]
    return replace(outcome, logprobs=logprobs)


def _first_mismatch(proposal: Proposal, verify_result: VerifyResult, num_matched: int) -> Outcome | None:
    """Emits the target's own chain up to the first draft that differs from it, so any drafter is lossless."""
    for index, token in enumerate(proposal.tokens[:num_matched]):
        is_lenient = bool(verify_result.lenient_accepts) and verify_result.lenient_accepts[index]
        if token != verify_result.tokens[index] and not is_lenient:
            return _end(proposal, index, verify_result.tokens[index], Origin.RECOVERED)
    return None


def _accept_by_ratio(proposal: Proposal, verify_result: VerifyResult, noise: RoundNoise, num_matched: int) -> Outcome:
    """Accepts with probability min(1, p/(lenience q)), or draws from norm(max(0, p - q)). The first drafts have matched."""
    comparisons: list[Comparison] = []
    for sampled, token in enumerate(proposal.tokens[num_matched:]):
        index, support = num_matched + sampled, proposal.supports[sampled]
        # The draft was sampled from the float32 values over their sum.
        q = proposal.support_probs[sampled].astype(np.float64)
        q /= q.sum()
        p = verify_result.support_probs[sampled].astype(np.float64)
        here = int(np.flatnonzero(support == token)[0])
        compared = Comparison(float(q[here]), float(p[here]), noise.uniform(index, Purpose.ACCEPT))
        comparisons.append(compared)
        if compared.r * verify_result.lenience * compared.q < compared.p:
            continue
        # Outside the support q is 0, so the residual is p, from which the target has drawn a token.
        weights = np.append(np.maximum(0.0, p - q), verify_result.outside_masses[sampled])
        if weights.sum() == 0:
            # p equals q up to rounding: not a rejection.
            continue
        sums = weights.cumsum()
        chosen = int(np.searchsorted(sums, noise.uniform(index, Purpose.RESIDUAL) * sums[-1], side="right"))
        recovered = verify_result.outside_tokens[sampled] if chosen == len(support) else int(support[chosen])
        return _end(proposal, index, recovered, Origin.RECOVERED, comparisons)
    return _end(proposal, len(proposal), verify_result.tokens[-1], Origin.BONUS, comparisons)


def _end(
    proposal: Proposal, num_accepted: int, last: int, origin: Origin, comparisons: list[Comparison] | None = None
) -> Outcome:
    if not proposal.tokens:
        origin = Origin.TARGET
    return Outcome([*proposal.tokens[:num_accepted], last], num_accepted, origin, comparisons=comparisons or [])


class SyntheticAcceptance:
    """Replaces `acceptance.accept` in benchmarks: accepts each draft with the same probability.

    With random weights nothing is accepted, so speed at a given acceptance rate needs it. The output is meaningless.
    """

    def __init__(self, chance: float) -> None:
        """Raises InvalidArgument."""
        require(0 <= chance <= 1, "synthetic_acceptance_rate", chance, "in [0, 1]")
        self.chance = chance

    def __call__(self, proposal: Proposal, verify_result: VerifyResult, noise: RoundNoise) -> Outcome:
        for index in range(len(proposal)):
            if noise.uniform(index, Purpose.ACCEPT) >= self.chance:
                return Outcome([*proposal.tokens[:index], verify_result.choices[index]], index, Origin.RECOVERED)
        origin = Origin.BONUS if proposal.tokens else Origin.TARGET
        return Outcome([*proposal.tokens, verify_result.tokens[-1]], len(proposal), origin)
