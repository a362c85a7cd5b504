"""The choice of a request's draft length rule."""

from coordinator.draft_length import DraftLengthRule, FixedLength
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.adaptive import GoodputLength
from coordinator.draft_length.costs import Costs
from paceline.sampling import MAX_DRAFT_TOKENS, Bounds, Drafter, SpeculationParams


class DraftLengthRules:
    """Makes a rule for each generation. Generations with the same drafter share the learned costs."""

    def __init__(self, active: ActiveGenerations) -> None:
        self._costs = {drafter: Costs(active) for drafter in Drafter}
        # n-grams after a long match are accepted more often than other n-grams, so they have their own costs.
        self._long_match_costs = Costs(active)
        self._prediction_costs = Costs(active)

    def make(self, speculation: SpeculationParams, after_long_match: bool = False) -> DraftLengthRule:
        """`after_long_match`: the rule is for the n-grams of a hybrid proposer."""
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
                # The entropy rule itself runs in the draft server; this is only its limit.
                return FixedLength(length.bounds.max)

    def make_for_prediction(self, speculation: SpeculationParams) -> DraftLengthRule:
        """The rule for drafts from the request's prediction. They cost nothing and are accepted for long stretches, so
        the bound of other drafts does not hold for them."""
        length = speculation.num_draft_tokens
        if isinstance(length, int):
            return FixedLength(length)
        least = length.min if isinstance(length, Bounds) else length.bounds.min
        return GoodputLength(Bounds(least, MAX_DRAFT_TOKENS), self._prediction_costs)
