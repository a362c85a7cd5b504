"""Which draft length rule a request gets."""

from coordinator.draft_length import DraftLengthRule, FixedLength
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.costs import Costs
from coordinator.draft_length.goodput import GoodputLength
from paceline.sampling import Bounds, Drafter, SpeculationParams


class DraftLengthRules:
    """Makes a rule for each generation; what rounds cost is learned by all with the same drafter."""

    def __init__(self, active: ActiveGenerations) -> None:
        self._costs = {drafter: Costs(active) for drafter in Drafter}
        # After a long match n-grams are more often right than after any.
        self._long_match_costs = Costs(active)

    def make(self, speculation: SpeculationParams, after_long_match: bool = False) -> DraftLengthRule:
        """`after_long_match`: for a hybrid's n-grams."""
        if not speculation.enabled:
            return FixedLength(0)
        length = speculation.num_draft_tokens
        match length:
            case int():
                return FixedLength(length)
            case Bounds():
                costs = self._long_match_costs if after_long_match else self._costs[speculation.drafter]
                return GoodputLength(length, costs)
            case _:
                # The entropy rule stops earlier, but inside the draft server.
                return FixedLength(length.bounds.max)
