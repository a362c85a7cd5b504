"""The chooser: the proposer of a request that asks for adaptive drafts."""

import math
from collections.abc import Sequence
from dataclasses import replace

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.policy.bandit import PROBE_ROUNDS, Probe, Trial, Way
from coordinator.policy.cost_model import Experience, guessed_row
from coordinator.policy.measurements import Pace
from coordinator.policy.planners import ModelSource, Plan, Prices, Source
from coordinator.policy.policy import Proposer
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.speculation import Bounds

# Beside others a row is taken to cost this fraction more than was measured: rounds that ended together are counted as one
# forward, and were not all in it, which makes the measured slope too small.
COMPANY_CARE = 0.6


class Chooser(Proposer):
    """One generation's choice, in every round, of a source and of how many tokens it proposes."""

    def __init__(self, sources: Sequence[Source], bounds: Bounds, experience: Experience, is_greedy: bool) -> None:
        super().__init__(*sources)
        self._sources = sources
        self._bounds = bounds
        self._experience = experience
        self._costs = experience.costs
        self._shared_pace = experience.pace(is_greedy)
        self._pace = Pace(self._shared_pace)
        # Whether the prompt's round is over, which says nothing about others.
        self._has_begun = False
        # What was chosen for the round that runs.
        self._asked: tuple[Source, Plan] | None = None
        # When this generation last had a model's drafts; before that, when its first round ended.
        self._drafted_s = math.inf
        # Who might draft in the round that runs, and the trial that said so; None: nobody asked.
        self._way = Way.ALL
        self._trial: Trial | None = None
        self._probe = experience.probe
        self._probe_rounds = 0

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._has_begun, self._asked, self._trial = True, None, None
        if context.draft_room < 1:
            return Proposal(report=DraftReport(reason="one token is left to generate"))
        most = min(self._bounds.max, context.draft_room)
        bounds, prices = Bounds(min(self._bounds.min, most), most), self._prices()
        self._way, self._trial = prices.way, self._costs.level.trial
        if self._way is Way.NOBODY and bounds.min == 0:
            # Not even looked up: that takes time too.
            return Proposal(report=DraftReport(reason=f"does not pay at {self._costs.num_active} at once"))
        plans = [(source, await source.plan(context, bounds, prices)) for source in self._sources]
        # The model comes last: what it says is the reason for a round without drafts.
        source, plan = max(reversed(plans), key=lambda each: (each[1].num_draft_tokens > 0, each[1].gain))
        if plan.num_draft_tokens == 0:
            plan = self._plan_to_probe(context, source, plan)
        if plan.num_draft_tokens == 0:
            return Proposal(report=DraftReport(reason=plan.reason))
        self._asked = source, plan
        proposal = await source.propose(context, plan)
        reason = "" if proposal.tokens else proposal.report.reason or "the drafter proposed nothing"
        return replace(proposal, report=replace(proposal.report, num_asked=plan.num_draft_tokens, reason=reason))

    def learn(self, finished: Round) -> None:
        if not self._has_begun:
            return
        self._costs.learn(finished)
        self._learn_way(finished)
        plain_s = self._costs.level.verify(0)
        if plain_s > 0:
            plain_rounds = (finished.propose_s + finished.verify_s) / plain_s
            for pace in (self._pace, self._shared_pace):
                pace.learn(len(finished.outcome.tokens), plain_rounds)
        if self._drafted_s == math.inf:
            self._drafted_s = finished.verified_s
        if self._asked is not None:
            source, plan = self._asked
            source.learn(plan, finished)
            if isinstance(source, ModelSource):
                self._drafted_s = finished.verified_s

    def _learn_way(self, finished: Round) -> None:
        """What the round says of its way; nothing where generations have come or gone and another trial counts now."""
        trial, num_active = self._costs.level.trial, self._costs.num_active
        if num_active == 1 or trial is not self._trial:
            return
        if trial.counts(num_active, self._costs.was_beside_a_prompt(finished)):
            once_s = min(finished.propose_s, self._costs.reading_s(finished.proposal.report.num_tail_tokens))
            num_tokens = len(finished.outcome.tokens)
            trial.learn(self._way, num_active, num_tokens, finished.started_s, finished.verified_s, once_s)

    def _prices(self) -> Prices:
        verify, num_active = self._costs.level.verify, self._costs.num_active
        company = 1 - 1 / num_active
        own, shared = self._pace.tokens, self._shared_pace.tokens
        tokens = own + company * (shared - own)
        way = self._costs.level.trial.way if company > 0 else Way.ALL
        care = 1 + company * COMPANY_CARE
        if not verify.is_known:
            return Prices(care * guessed_row(num_active) * tokens, 0.0, company, way)
        tokens_per_s = tokens / verify(0)
        return Prices(care * verify.slope * tokens_per_s, tokens_per_s, company, way)

    def _plan_to_probe(self, context: Context, source: Source, plan: Plan) -> Plan:
        """One draft in the rounds of a probe (see `probe`)."""
        if self._way is not Way.ALL or not isinstance(source, ModelSource) or source.absence(context):
            return plan
        reading_s = source.reading_price_s(context)
        since_s = min(self._drafted_s, self._costs.drafted_s)
        if self._experience.probe.is_over(self._costs.now_s, since_s, reading_s + source.probe_s):
            self._experience.probe = Probe(self._costs.now_s, reading_s)
        if self._probe is not self._experience.probe:
            self._probe = self._experience.probe
            self._probe_rounds = PROBE_ROUNDS if reading_s <= self._probe.reading_s else 0
        if self._probe_rounds == 0:
            return plan
        self._probe_rounds -= 1
        return Plan(num_draft_tokens=1)
