"""The source of drafts that take time to make: a draft model, or a user's own drafter."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter
from coordinator.drafters.model import RemoteDrafter
from coordinator.policy.bandit import PROBE_ROUNDS, Way
from coordinator.policy.cost_model import Costs, SharedRates
from coordinator.reports import DraftedBy
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


# The first guess for a draft behind an accepted one.
FIRST_MODEL_RATE = 0.65
# A draft model goes on while the product of its confidences times this is worth a draft. Its confidence is larger than
# its acceptance, and the next token is not certain. Measured on 60 texts of SmolLM2-135M with its draft, in steps of 0.1
# of the least confidence: the best is 0.6 without AMX, 0.4 with it; this gives 0.6 and 0.4.
NEXT_ACCEPTED = 0.45
# Every so many proposals one draft more is asked for than seems to pay: otherwise nothing would be learned of it.
LONGER_EVERY = 16
# An answer's end is not known. As many more tokens are expected as there are, plus this number.
FIRST_REST = 128


def first_model_rate(kind: Hashable) -> float:
    """`kind`: ("proposed", k) or ("accepted", k), that a round which asked for k drafts and more had the k-th draft, and
    that it was accepted."""
    assert isinstance(kind, tuple)
    what, k = kind
    return 1.0 if what == "proposed" else FIRST_MODEL_RATE**k


class ModelSource:
    """Proposes as far as the next draft is worth its step and its row."""

    def __init__(self, drafter: Drafter, name: DraftedBy, rates: SharedRates, costs: Costs) -> None:
        self._drafter = drafter
        self._name = name
        self._rates = rates
        self._costs = costs
        # Context tokens that the drafter had read when it last proposed.
        self._num_read = 0
        self._num_proposals = 0

    @property
    def _remote(self) -> RemoteDrafter | None:
        return self._drafter if isinstance(self._drafter, RemoteDrafter) else None

    def absence(self, context: Context) -> str:
        """Why it can't draft, in words for a user; empty if it can."""
        return self._remote.absence(context) if self._remote is not None else ""

    async def plan(self, context: Context, bounds: Bounds, prices: Prices) -> Plan:
        if absence := self.absence(context):
            return Plan(reason=absence)
        nothing = Plan(reason=f"does not pay at {self._costs.num_active} at once")
        if prices.way is not Way.ALL and bounds.min == 0:
            return nothing
        line = self._costs.level.drafting(self._name)
        step = line.slope * prices.second + prices.row
        # The rounds of the rest of the answer share the reading.
        reading = self.reading_price_s(context) * prices.second / self._rest(context)
        tokens, num_drafts = 1.0, 0.0
        best = nothing
        confidence = min(1.0, step / NEXT_ACCEPTED) if self._remote is not None else 0.0
        for k in range(1, bounds.max + 1):
            tokens += self._rate(("accepted", k), prices)
            num_drafts += self._rate(("proposed", k), prices)
            price = line(num_drafts) * prices.second + num_drafts * prices.row + reading * tokens
            if tokens - 1 - price > best.gain or k <= bounds.min:
                best = Plan(tokens - 1 - price, k, confidence)
        if 0 < best.num_draft_tokens < bounds.max and self._num_proposals % LONGER_EVERY == LONGER_EVERY - 1:
            return replace(best, num_draft_tokens=best.num_draft_tokens + 1)
        return best

    async def propose(self, context: Context, plan: Plan) -> Proposal:
        self._num_read = len(context)
        self._num_proposals += 1
        if self._remote is not None:
            return await self._remote.propose(context, plan.num_draft_tokens, plan.least_confidence)
        return await self._drafter.propose(context, plan.num_draft_tokens)

    def learn(self, plan: Plan, finished: Round) -> None:
        proposal = finished.proposal
        if len(proposal) == 0 and self._remote is not None:
            # It was in trouble.
            return
        for k in range(1, proposal.report.num_asked + 1):
            self._rates.learn(("proposed", k), len(proposal) >= k)
            self._rates.learn(("accepted", k), finished.outcome.num_accepted >= k)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def release(self) -> None:
        self._drafter.release()

    def reading_price_s(self, context: Context) -> float:
        """Seconds to read what the drafter has missed."""
        num_read = self._num_read if self._remote is None else min(self._num_read, self._remote.num_read)
        return self._costs.reading_s(len(context) - num_read)

    @property
    def probe_s(self) -> float:
        """Seconds that the drafts of a probe take."""
        level = self._costs.level
        return PROBE_ROUNDS * (level.drafting(self._name)(1) + level.verify.slope)

    def _rest(self, context: Context) -> int:
        """Tokens that the answer is expected to have still, at least 1."""
        return max(1, min(context.num_remaining, FIRST_REST + context.num_generated))

    def _rate(self, kind: Hashable, prices: Prices) -> float:
        """In company the rate of all generations counts: if only a part of a batch drafts, it falls apart into two."""
        own = self._rates[kind]
        return own + prices.company * (self._rates.shared[kind] - own)


# The first guess for a token of any kind.
FIRST_LOOKUP_RATE = 0.6


def first_look_up_rate(kind: Hashable) -> float:
    return FIRST_LOOKUP_RATE


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
