"""The source of drafts that cost nothing to make: n-grams, earlier texts and predictions."""

from collections.abc import Hashable, Sequence
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.choosing import Plan, Prices
from coordinator.choosing.experience import SharedRates
from coordinator.choosing.model import ModelSource
from coordinator.context import Context
from coordinator.drafting import Drafter
from coordinator.stats import Round
from paceline.speculation import Bounds

# The first guess for a token of any kind.
FIRST_RATE = 0.6


def first_look_up_rate(kind: Hashable) -> float:
    return FIRST_RATE


class LookUp(Drafter, Protocol):
    """A drafter that knows its next tokens, and of each how likely it is: by its kind."""

    async def outlook(self, context: Context, num_tokens: int) -> Sequence[Hashable]:
        """The kinds of the next tokens, `num_tokens` at most."""
        ...

    def take_hits(self) -> Sequence[tuple[Hashable, bool]]:
        """Of each generated token since the last call that the drafter had an idea of: its kind, and whether the idea
        was right."""
        ...


class LookUpSource:
    """Proposes as far as the next token is likely enough to be worth its row.

    It learns from every token of the text, also from those that it did not propose.
    """

    def __init__(
        self, drafter: LookUp, rates: SharedRates, most: int = 0, stands_in_for: ModelSource | None = None
    ) -> None:
        """`most`: a bound in place of the request's. `stands_in_for`: a model that proposes whenever it can."""
        self._drafter = drafter
        self._rates = rates
        self._most = most
        self._stands_in_for = stands_in_for

    async def plan(self, context: Context, bounds: Bounds, prices: Prices) -> Plan:
        if self._stands_in_for is not None and not self._stands_in_for.absence(context):
            return Plan()
        kinds = await self._drafter.outlook(context, min(self._most or bounds.max, context.draft_room))
        for kind, is_right in self._drafter.take_hits():
            self._rates.learn(kind, is_right)
        best, gain, chance = Plan(reason="no match" if not kinds else "no likely match"), 0.0, 1.0
        for num_tokens, kind in enumerate(kinds, start=1):
            chance *= self._rates[kind]
            gain += chance - prices.row
            if gain > best.gain or num_tokens <= bounds.min:
                best = Plan(gain, num_tokens)
            elif chance < prices.row:
                break
        return best

    async def propose(self, context: Context, plan: Plan) -> Proposal:
        return await self._drafter.propose(context, plan.num_draft_tokens)

    def learn(self, plan: Plan, finished: Round) -> None:
        """Nothing: the text teaches it."""

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def release(self) -> None:
        self._drafter.release()
