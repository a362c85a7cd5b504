"""Which length rule a request gets."""

from coordinator.draft_length import DraftLengthRule, FixedLength
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.costs import Costs
from coordinator.draft_length.goodput import GoodputLength
from coordinator.draft_length.hybrid import HybridLength
from paceline.sampling import Bounds, Drafter, SpeculationParams


class DraftLengthRules:
    """Makes a rule for each generation; what rounds cost is learned by all with the same drafter."""

    def __init__(self, active: ActiveGenerations) -> None:
        self._costs = {drafter: Costs(active) for drafter in Drafter}
        # After a long match n-grams are more often right than after any.
        self._long_matches = Costs(active)

    def make(self, speculation: SpeculationParams) -> DraftLengthRule:
        """A HybridLength for a hybrid drafter."""
        if not speculation.enabled:
            return FixedLength(0)
        rule = _rule(speculation, self._costs[speculation.drafter])
        if speculation.drafter is not Drafter.HYBRID:
            return rule
        return HybridLength(_rule(speculation, self._long_matches), rule, _most(speculation))


def _rule(speculation: SpeculationParams, costs: Costs) -> DraftLengthRule:
    length = speculation.num_draft_tokens
    # The entropy rule stops earlier than its most, but inside the draft server.
    return GoodputLength(length, costs) if isinstance(length, Bounds) else FixedLength(_most(speculation))


def _most(speculation: SpeculationParams) -> int:
    length = speculation.num_draft_tokens
    match length:
        case int():
            return length
        case Bounds():
            return length.max
        case _:
            return length.bounds.max
