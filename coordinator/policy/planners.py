"""Planners: how many tokens one drafter should propose in a round, and how many tokens that gains.

A `LookupPlanner` plans for drafts that cost nothing to make: n-grams, earlier texts and predictions. A `ModelPlanner` plans
for drafts that take time: a draft model, or a custom drafter.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import LookupDrafter, ModelDrafter
from coordinator.policy.bandit import PROBE_ROUNDS, Arm
from coordinator.policy.cost_model import CostModel, Experience, SharedRates
from coordinator.stats import Round
from paceline.speculation import Bounds

# Prior acceptance rate of a token that was looked up, of any kind.
FIRST_LOOKUP_RATE = 0.6
# Prior acceptance rate of a drafted token after an accepted one.
FIRST_MODEL_RATE = 0.65
# A draft model goes on while its joint confidence times this is worth a draft: its confidence exceeds its acceptance
# rate, and it does not know yet how confident it will be of the next token.
NEXT_ACCEPTED = 0.45
# One proposal in this many asks for a token more than seems to pay, so that its acceptance is learned.
LONGER_EVERY = 16
# An answer is expected to go on for as many tokens as it has, plus this number.
FIRST_REST = 128


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """What drafts cost, in tokens that would be generated in the same time."""

    # One more row in the target's forward.
    row: float
    # A second of drafting.
    second: float
    # Weight of what other generations do, in [0, 1): 1 - 1/n with n generations.
    sharing: float
    # Which drafters may propose (see `bandit`).
    arm: Arm = Arm.ALL


@dataclass(frozen=True, slots=True)
class Plan:
    """What a drafter would propose, and its gain in tokens a round."""

    gain: float = 0.0
    num_draft_tokens: int = 0
    # A draft model stops when its joint confidence falls below this.
    least_confidence: float = 0.0
    # Why there is nothing to propose, in words for a user.
    reason: str = ""


class ModelPlanner:
    """Plans up to the token whose expected gain no longer pays for its step and its row."""

    def __init__(self, drafter: ModelDrafter, experience: Experience, is_greedy: bool) -> None:
        self.drafter = drafter
        self._rates: SharedRates = experience.rates(drafter.name, is_greedy, _first_model_rate)
        self._costs: CostModel = experience.costs
        # Context tokens that the drafter had read when it last proposed.
        self._num_read = 0
        self._num_proposals = 0

    async def plan(self, context: Context, bounds: Bounds, costs: DraftCosts) -> Plan:
        if absence := self.drafter.absence(context):
            return Plan(reason=absence)
        nothing = Plan(reason=f"does not pay at {self._costs.num_active} at once")
        if costs.arm is not Arm.ALL and bounds.min == 0:
            return nothing
        line = self._costs.level.drafting(self.drafter.name)
        step = line.slope * costs.second + costs.row
        # The rounds of the rest of the answer share the reading.
        reading = self.reading_s(context) * costs.second / self._rest(context)
        tokens, num_drafts = 1.0, 0.0
        best = nothing
        confidence = min(1.0, step / NEXT_ACCEPTED) if self.drafter.has_confidence else 0.0
        for k in range(1, bounds.max + 1):
            tokens += self._rate(("accepted", k), costs)
            num_drafts += self._rate(("proposed", k), costs)
            cost = line(num_drafts) * costs.second + num_drafts * costs.row + reading * tokens
            if tokens - 1 - cost > best.gain or k <= bounds.min:
                best = Plan(tokens - 1 - cost, k, confidence)
        if 0 < best.num_draft_tokens < bounds.max and self._num_proposals % LONGER_EVERY == LONGER_EVERY - 1:
            return replace(best, num_draft_tokens=best.num_draft_tokens + 1)
        return best

    async def propose(self, context: Context, plan: Plan) -> Proposal:
        self._num_read = len(context)
        self._num_proposals += 1
        return await self.drafter.propose(context, plan.num_draft_tokens, plan.least_confidence)

    def learn(self, finished: Round) -> None:
        proposal = finished.proposal
        if len(proposal) == 0 and self.drafter.has_confidence:
            # The drafter was unavailable.
            return
        for k in range(1, proposal.report.num_asked + 1):
            self._rates.learn(("proposed", k), len(proposal) >= k)
            self._rates.learn(("accepted", k), finished.outcome.num_accepted >= k)

    def reading_s(self, context: Context) -> float:
        """Returns the expected seconds to read the context that the drafter has missed."""
        num_read = min(self._num_read, self.drafter.num_cached(context))
        return self._costs.reading_s(len(context) - num_read)

    @property
    def probe_s(self) -> float:
        level = self._costs.level
        return PROBE_ROUNDS * (level.drafting(self.drafter.name)(1) + level.verify.slope)

    def _rest(self, context: Context) -> int:
        """Returns the expected number of tokens still to come, at least 1."""
        return max(1, min(context.num_remaining, FIRST_REST + context.num_generated))

    def _rate(self, kind: Hashable, costs: DraftCosts) -> float:
        """Weighs this generation's rate against that of all: a batch in which only some draft splits in two."""
        own = self._rates[kind]
        return own + costs.sharing * (self._rates.shared[kind] - own)


class LookupPlanner:
    """Plans up to the token that is no longer likely enough to be worth its row.

    It learns from every token of the text, proposed or not.
    """

    def __init__(
        self, drafter: LookupDrafter, experience: Experience, is_greedy: bool, stands_in_for: ModelDrafter | None = None
    ) -> None:
        """`stands_in_for`: a model that proposes whenever it is available."""
        self.drafter = drafter
        self._rates = experience.rates(drafter.name, is_greedy, lambda kind: FIRST_LOOKUP_RATE)
        self._stands_in_for = stands_in_for

    async def plan(self, context: Context, bounds: Bounds, costs: DraftCosts) -> Plan:
        if self._stands_in_for is not None and not self._stands_in_for.absence(context):
            return Plan()
        limit = min(self.drafter.max_draft_tokens or bounds.max, context.draft_room)
        kinds = await self.drafter.candidates(context, limit)
        for kind, is_right in self.drafter.take_hits():
            self._rates.learn(kind, is_right)
        best, gain, chance = Plan(reason="no match" if not kinds else "no likely match"), 0.0, 1.0
        for num_tokens, kind in enumerate(kinds, start=1):
            chance *= self._rates[kind]
            gain += chance - costs.row
            if gain > best.gain or num_tokens <= bounds.min:
                best = Plan(gain, num_tokens)
            elif chance < costs.row:
                break
        return best

    async def propose(self, context: Context, plan: Plan) -> Proposal:
        return await self.drafter.propose(context, plan.num_draft_tokens)


def _first_model_rate(kind: Hashable) -> float:
    """Returns the prior of ("proposed", k), a k-th token if k or more were asked for, or ("accepted", k)."""
    assert isinstance(kind, tuple)
    what, k = kind
    return 1.0 if what == "proposed" else FIRST_MODEL_RATE**k
