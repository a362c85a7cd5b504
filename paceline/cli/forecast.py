"""What to expect of speculation at one alpha and one set of costs: numbers for `paceline plan`, and advice in words."""

import math
from dataclasses import dataclass
from typing import Any

from paceline import theory

# Shares of accepted drafts above and below which a draft is too good, or agrees too seldom.
MUCH_ACCEPTED = 0.9
LITTLE_ACCEPTED = 0.5


@dataclass(frozen=True, slots=True)
class Forecast:
    """The theory at one alpha and one set of costs, for k = 0 to `longest`. Costs in target forwards."""

    alpha: float
    draft_cost: float
    wire: float
    operations_cost: float
    longest: int
    # What each drafted row adds to the time of a target forward.
    verify_cost: float = 0.0

    @property
    def best(self) -> int:
        return theory.best_k(self.alpha, self.draft_cost, self.wire, self.longest, self.verify_cost)

    @property
    def costs(self) -> str:
        """In words, those that are 0 left out but for the draft's and the wire's."""
        verify = f", verify cost {self.verify_cost:.3g}" if self.verify_cost > 0 else ""
        return f"draft cost {self.draft_cost:.3g}, wire {self.wire:.3g}{verify}"

    @property
    def oracle_speed(self) -> float:
        """Where each round's first rejection is known ahead, over plain decoding in one process; may be infinite."""
        return theory.oracle_speedup(self.alpha, self.draft_cost, self.wire, self.verify_cost)

    def speed(self, k: int) -> float:
        """Over plain decoding in one process, which has no wire."""
        return theory.speedup(self.alpha, k, self.draft_cost, self.wire, self.verify_cost)

    def gain(self, k: int) -> float:
        """Over plain decoding by the same services, whose rounds have their wire too."""
        return self.speed(k) / self.speed(0)

    def rows(self) -> list[dict[str, Any]]:
        """A row for each k."""
        return [
            {
                "k": k,
                "accepted_per_round": theory.accepted_per_round(self.alpha, k),
                "tokens_per_round": theory.tokens_per_round(self.alpha, k),
                "speedup": self.speed(k),
                "speedup_over_k0": self.gain(k),
                "operations": theory.operations(self.alpha, k, self.operations_cost),
                "target_reads": theory.target_reads(self.alpha, k),
            }
            for k in range(self.longest + 1)
        ]

    def oracle(self) -> dict[str, float | None]:
        """An oracle's figures; None where there is no bound."""
        figures = {
            "tokens_per_round": theory.oracle_tokens(self.alpha),
            "speedup": self.oracle_speed,
            "over_best_k": self.oracle_speed / self.speed(self.best),
        }
        return {name: None if math.isinf(figure) else figure for name, figure in figures.items()}


def advice(made: Forecast) -> str:
    """What to do, in one sentence."""
    best = made.best
    if best == 0:
        return f"Do not speculate: with {made.alpha:.0%} of the drafts accepted, {_why_not(made)}"
    tokens = f"{best} draft token{'s' if best > 1 else ''} a round"
    most = " (the most allowed)" if best == made.longest else ""
    expected = f"expect {made.gain(best):.2f} times the speed of plain decoding"
    if made.wire > 0:
        expected += f" by the same services, {made.speed(best):.2f} times that of one process without a wire"
    return f"Speculate with {tokens}{most}: {expected}."


def about_the_draft(made: Forecast) -> str | None:
    """What its share of accepted drafts says of a draft; None between the two limits."""
    if made.alpha > MUCH_ACCEPTED:
        longer = "" if made.best == 0 else "Draft far, and "
        said = f"{longer}try a smaller draft, whose steps take less time, although it agrees less often."
        return f"More than {MUCH_ACCEPTED:.0%} of the drafts are accepted. {said[0].upper()}{said[1:]}"
    if made.alpha < LITTLE_ACCEPTED:
        return (
            f"Less than {LITTLE_ACCEPTED:.0%} of the drafts are accepted: the draft agrees too seldom with the target. "
            "Draft few tokens, take another draft, or make one for this target (paceline distill)."
        )
    return None


def about_the_oracle(made: Forecast) -> str:
    """How much a better choice of k in each round could bring."""
    if math.isinf(made.oracle_speed):
        return "Drafts that are always accepted and cost nothing: more of them are always faster."
    share = made.oracle_speed / made.speed(made.best) - 1
    over = "no speculation" if made.best == 0 else f"k = {made.best}"
    return (
        f"An oracle that knew in each round how many drafts will be accepted would be {share:.0%} faster than {over}: "
        f"{made.oracle_speed:.2f}x. No choice of k can do better."
    )


def _why_not(made: Forecast) -> str:
    """One draft token pays where any number does: corollary 3.9, with the wire and a row's time in every round."""
    limit = made.alpha * (1 + made.wire) - made.verify_cost
    if limit <= 0:
        return "it does not pay however fast the draft is."
    return (
        f"it pays only where a draft step takes less than {limit:.3g} target forwards, and it takes "
        f"{made.draft_cost:.3g}."
    )
