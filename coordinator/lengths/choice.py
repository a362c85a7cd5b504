"""Which length rule a request gets."""

from coordinator.lengths import FixedLength, LengthRule
from coordinator.lengths.costs import Costs
from coordinator.lengths.goodput import GoodputLength
from paceline.sampling import Bounds, SpeculationParams


def make_length(speculation: SpeculationParams, costs: Costs) -> LengthRule:
    """`costs` is shared by all generations with the same drafter."""
    length = speculation.num_draft_tokens
    if isinstance(length, Bounds):
        return GoodputLength(length, costs)
    # The entropy rule stops earlier than its most, but inside the draft server.
    return FixedLength(length if isinstance(length, int) else length.bounds.max)
