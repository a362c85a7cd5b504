"""The adaptive policy, the default; and `Policies`, which makes each request's policy."""

import math
from dataclasses import replace

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.drafter import DrafterSet, NoDrafter, Resources, load_factory
from coordinator.drafters.prediction import PredictionDrafter
from coordinator.policy.bandit import PROBE_ROUNDS, Arm, Bandit, Probe
from coordinator.policy.cost_model import Experience, guessed_row
from coordinator.policy.measurements import Speedup
from coordinator.policy.planners import DraftCosts, LookupPlanner, ModelPlanner, Plan
from coordinator.policy.policy import FixedPolicy, Policy, PredictionPolicy
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.checks import require
from paceline.speculation import MAX_DRAFT_TOKENS, Bounds
from paceline.speculation import Drafter as DrafterName

# With others a row is taken to cost this fraction more than measured. Rounds that ended together are counted as one
# forward though not all were in it, which makes the measured slope too small.
SHARING_MARGIN = 0.6


class AdaptivePolicy(Policy):
    """Chooses a drafter, and how many tokens it proposes, in every round of one generation."""

    def __init__(self, drafters: DrafterSet, bounds: Bounds, experience: Experience, is_greedy: bool) -> None:
        model = drafters.model
        super().__init__([*drafters.lookups, *drafters.standby, *([] if model is None else [model])])
        self._planners: list[LookupPlanner | ModelPlanner] = [
            *(LookupPlanner(drafter, experience, is_greedy) for drafter in drafters.lookups),
            *(LookupPlanner(drafter, experience, is_greedy, model) for drafter in drafters.standby),
        ]
        self._model = None if model is None else ModelPlanner(model, experience, is_greedy)
        if self._model is not None:
            self._planners.append(self._model)
        self._bounds = bounds
        self._experience = experience
        self._costs = experience.costs
        self._shared_speedup = experience.speedup(is_greedy)
        self._speedup = Speedup(self._shared_speedup)
        # Whether the prompt's round is over, from which nothing is learned.
        self._has_begun = False
        # The planner chosen for the current round, and its plan.
        self._chosen: tuple[LookupPlanner | ModelPlanner, Plan] | None = None
        # When this generation last had a model's drafts; before that, when its first round ended.
        self._drafted_s = math.inf
        # The arm of the current round, and the bandit that chose it; None if there was nothing to choose.
        self._arm = Arm.ALL
        self._bandit: Bandit | None = None
        self._probe = experience.probe
        self._probe_rounds = 0

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._has_begun, self._chosen, self._bandit = True, None, None
        if context.draft_room < 1:
            return Proposal(report=DraftReport(reason="one token is left to generate"))
        limit = min(self._bounds.max, context.draft_room)
        bounds, costs = Bounds(min(self._bounds.min, limit), limit), self._draft_costs()
        self._arm, self._bandit = costs.arm, self._costs.level.bandit
        if self._arm is Arm.NONE and bounds.min == 0:
            # Lookups take time too.
            return Proposal(report=DraftReport(reason=f"does not pay at {self._costs.num_active} at once"))
        plans = [(planner, await planner.plan(context, bounds, costs)) for planner in self._planners]
        # The model comes last: on a tie its reason explains a round without drafts.
        planner, plan = max(reversed(plans), key=lambda each: (each[1].num_draft_tokens > 0, each[1].gain))
        if plan.num_draft_tokens == 0 and self._model is not None and planner is self._model:
            plan = self._plan_to_probe(context, self._model, plan)
        if plan.num_draft_tokens == 0:
            return Proposal(report=DraftReport(reason=plan.reason))
        self._chosen = planner, plan
        proposal = await planner.propose(context, plan)
        reason = "" if proposal.tokens else proposal.report.reason or "the drafter proposed nothing"
        return replace(proposal, report=replace(proposal.report, num_asked=plan.num_draft_tokens, reason=reason))

    def learn(self, finished: Round) -> None:
        if not self._has_begun:
            return
        by_model = self._chosen is not None and self._chosen[0] is self._model
        self._costs.learn(finished, by_model)
        self._learn_arm(finished)
        plain_s = self._costs.level.verify(0)
        if plain_s > 0:
            plain_rounds = (finished.propose_s + finished.verify_s) / plain_s
            for speedup in (self._speedup, self._shared_speedup):
                speedup.learn(len(finished.outcome.tokens), plain_rounds)
        if self._drafted_s == math.inf or by_model:
            self._drafted_s = finished.verified_s
        if by_model and self._model is not None:
            self._model.learn(finished)

    def _learn_arm(self, finished: Round) -> None:
        """Tells the bandit of the round, unless generations have come or gone and another bandit counts now."""
        bandit, num_active = self._costs.level.bandit, self._costs.num_active
        if num_active == 1 or bandit is not self._bandit:
            return
        if bandit.counts(num_active, self._costs.overlapped_a_prompt(finished)):
            once_s = min(finished.propose_s, self._costs.reading_s(finished.proposal.report.num_tail_tokens))
            num_tokens = len(finished.outcome.tokens)
            bandit.learn(self._arm, num_active, num_tokens, finished.started_s, finished.verified_s, once_s)

    def _draft_costs(self) -> DraftCosts:
        verify, num_active = self._costs.level.verify, self._costs.num_active
        sharing = 1 - 1 / num_active
        own, shared = self._speedup.tokens, self._shared_speedup.tokens
        tokens = own + sharing * (shared - own)
        arm = self._costs.level.bandit.arm if sharing > 0 else Arm.ALL
        margin = 1 + sharing * SHARING_MARGIN
        if not verify.is_known:
            return DraftCosts(margin * guessed_row(num_active) * tokens, 0.0, sharing, arm)
        tokens_per_s = tokens / verify(0)
        return DraftCosts(margin * verify.slope * tokens_per_s, tokens_per_s, sharing, arm)

    def _plan_to_probe(self, context: Context, model: ModelPlanner, plan: Plan) -> Plan:
        """Plans one draft in the rounds of a probe (see `bandit`), otherwise returns `plan`."""
        if self._arm is not Arm.ALL or model.drafter.absence(context):
            return plan
        reading_s = model.reading_s(context)
        since_s = min(self._drafted_s, self._costs.drafted_s)
        if self._experience.probe.is_over(self._costs.now_s, since_s, reading_s + model.probe_s):
            self._experience.probe = Probe(self._costs.now_s, reading_s)
        if self._probe is not self._experience.probe:
            self._probe = self._experience.probe
            self._probe_rounds = PROBE_ROUNDS if reading_s <= self._probe.reading_s else 0
        if self._probe_rounds == 0:
            return plan
        self._probe_rounds -= 1
        return Plan(num_draft_tokens=1)


class Policies:
    """Makes each request's policy."""

    def __init__(self, resources: Resources, experience: Experience) -> None:
        self.resources = resources
        self._experience = experience
        self._factories = {name: load_factory(name) for name in DrafterName}

    def check(self, name: DrafterName) -> None:
        """Raises InvalidArgument for a drafter that this coordinator does not have."""
        missing = {each: factory.missing(self.resources) for each, factory in self._factories.items()}
        *others, last = [each.value for each in missing if not missing[each]]
        require(not missing[name], "drafter", name.value, f"{', '.join(others)} or {last}: {missing[name]}")

    def make(self, request: Request) -> Policy:
        speculation, prediction = request.speculation, request.prediction
        length = speculation.num_speculative_tokens
        if not speculation.enabled or length == 0:
            return FixedPolicy(NoDrafter(), 0)
        factory = self._factories[speculation.drafter]
        if isinstance(length, Bounds):
            drafters = factory.make_set(self.resources, request)
            if prediction:
                drafters = replace(drafters, lookups=[PredictionDrafter(prediction), *drafters.lookups])
            return AdaptivePolicy(drafters, length, self._experience, request.sampling.is_greedy)
        # The draft server applies the entropy rule; here it is only a limit.
        num_draft_tokens = length if isinstance(length, int) else length.bounds.max
        policy = FixedPolicy(factory.fixed(self.resources, request), num_draft_tokens)
        if not prediction:
            return policy
        # The entropy rule's limit is for the draft model alone.
        num_predicted = length if isinstance(length, int) else MAX_DRAFT_TOKENS
        return PredictionPolicy(PredictionDrafter(prediction), num_predicted, policy)
