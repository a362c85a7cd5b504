"""Choosing: which source proposes in a round and how many tokens, where a request asks for adaptive drafts.

Every source says what its drafts would gain: the drafts it expects to be accepted, less what their time would bring in
tokens. The largest gain wins; if none is above 0, the round has no drafts. What sources know about acceptance and times
is measured (see `experience`).

A choice uses decided tokens, times, and how many drafts a model made before it was unsure. That number depends on drafts
that were then dropped, and biases nothing: under `match` the target's own choice comes out whatever was drafted, and under
`rejection` the noise of a round is keyed by where it begins, so no round draws again what an earlier one has drawn.
"""

from dataclasses import dataclass
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.choosing.trial import Way
from coordinator.context import Context
from coordinator.stats import Round
from paceline.speculation import Bounds


@dataclass(frozen=True, slots=True)
class Prices:
    """What drafts cost, in tokens that would come in the same time."""

    # For one more row in the target's forward.
    row: float
    # For a second of drafting.
    second: float
    # How much of what other generations do counts, in [0, 1): 0 alone, 1 - 1/n beside n - 1 others.
    company: float
    # Who may draft (see `trial`).
    way: Way = Way.ALL


@dataclass(frozen=True, slots=True)
class Plan:
    """What a source would propose, and its gain in tokens a round."""

    gain: float = 0.0
    num_draft_tokens: int = 0
    # A draft model stops when its confidence in its tokens falls below this.
    least_confidence: float = 0.0
    # Why there is nothing to propose, in words for a user.
    reason: str = ""


class Source(Protocol):
    """One generation's drafter, as the chooser uses it."""

    async def plan(self, context: Context, bounds: Bounds, prices: Prices) -> Plan:
        """The plan with the largest gain."""
        ...

    async def propose(self, context: Context, plan: Plan) -> Proposal:
        """Proposes as planned."""
        ...

    def learn(self, plan: Plan, finished: Round) -> None:
        """Learns from a round for which it proposed."""
        ...

    def truncate(self, length: int) -> None:
        """Drops cached tokens from position `length` on."""
        ...

    def release(self) -> None:
        """The generation has ended."""
        ...
