"""The adaptive policy, the default: it makes the proposal that gains most in every round (see `coordinator.policy`).

It counts choices. Without an output format every token is one. With a format, a choice brings the forced tokens after it,
drafted or not; as drafts they make the target's forward pass longer.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, LookupDrafter
from coordinator.policy.costs import Began, Pace
from coordinator.policy.experience import FIRST_WORTH, SHARED_WEIGHT, WORTH_FORGETTING, Experience
from coordinator.policy.policy import Policy
from coordinator.policy.source import NO_PLAN, Plan, Source
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.recent_mean import RecentMean
from paceline.speculation_params import Bounds

# Most rounds of each generation without drafts, to learn their pace, before those with a model's.
PLAIN_FIRST = 8
# First guess of a generation's speed: that of plain decoding, which counts as so many rounds.
GUESSED_ROUNDS = 8.0
# Weight of other answers in the share made without looked-up drafts, in choices; and factor on older ones for each round.
UNAIDED_FIRST, UNAIDED_MEMORY = 8.0, 0.98
# Weight of the newest round in what is lost by drafts that come a round late.
LATE_RECENT = 0.05


class AdaptivePolicy(Policy):
    """One generation's choice of a drafter and of the number of tokens in every round."""

    def __init__(self, drafters: DrafterSet, bounds: Bounds, experience: Experience, is_greedy: bool) -> None:
        super().__init__([*drafters.lookups, *drafters.standby, *drafters.models])
        self._set, self._bounds, self._experience, self._costs = drafters, bounds, experience, experience.costs
        self._is_greedy = is_greedy
        # What rounds take, as it was when this one began.
        self._rounds = self._costs.rounds
        self._lookup_rates = {
            each.name: experience.rates(each.name, is_greedy, each.prior)
            for each in (*drafters.lookups, *drafters.standby)
        }
        has_rivals = len(drafters.models) > 1
        self._sources = [Source(each, bounds, experience, is_greedy, has_rivals) for each in drafters.models]
        # The current round's plan, how many choices were looked up, and how many the model made.
        self._plan, self._num_before, self._num_drafted = NO_PLAN, 0, 0
        # Tokens per choice, and tokens that the target has not read.
        self._tokens_each, self._num_unfed = 1.0, 1
        # The plan with a model's drafts alone, and the decision of all that it holds for: planning takes a busy coordinator
        # as long as the rest of a round.
        self._held, self._held_until = NO_PLAN, 0
        # What `CostModel.note` said in this round, the newest source, and whether both were so before: in its first round a
        # model reads what it missed.
        self._num_changes, self._is_steady = 0, False
        self._newest: Source | None = None
        self._pace = Pace()
        # Recent choices of rounds without looked-up drafts, and of all rounds; and all choices.
        self._num_unaided, self._num_recent = UNAIDED_FIRST * experience.unaided.value, UNAIDED_FIRST
        self._num_chosen = 0
        # None before the prompt's round is over, which does not count.
        self._last_ended_s: float | None = None
        # In this round; 0 until it is asked for.
        self._known_speed = 0.0
        # Of what kind of rounds the head was asked for drafts in the last one, if it was, and how many it made.
        self._asked_for: RecentMean | None = None
        self._num_head_drafts, self._head_s = 0, 0.0
        self._head_step = experience.head_step
        # Whether the target may go on by itself in this generation, and whether it does in this round. It makes way if a model
        # is to draft for the next round.
        self._may_be_free, self._is_free, self._makes_way = False, False, False
        # Choices that looked-up drafts gain in this round, and are worth in a later one; what is lost so.
        self._gain, self._late_worth = 0.0, 0.0
        self._lost = RecentMean(LATE_RECENT)

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._plan, self._num_before, self._num_drafted, self._rounds = NO_PLAN, 0, 0, self._costs.rounds
        self._tokens_each, self._num_unfed = context.tokens_per_choice, len(context) - context.num_fed
        if context.draft_room < 1:
            return Proposal(report=DraftReport(reason="one token is left to generate"))
        self._may_be_free = context.target_decides and self._bounds.min == 0
        absences = [each.drafter.absence(context) for each in self._sources]
        sources = [each for each, absence in zip(self._sources, absences, strict=True) if not absence]
        reason = "" if sources else next(iter(absences), "no draft model")
        plans = [NO_PLAN]
        self._known_speed = self._gain = self._late_worth = 0.0
        for lookup in (*self._set.lookups, *(self._set.standby if reason else ())):
            plan = await self._plan_lookup(lookup, context)
            if plan.chances:
                # Without a match it is the first plan again, which the model need not continue twice.
                plans.append(plan)
        self._lost.add(self._gain - self._late_worth)
        if sources:
            reason = f"no draft pays at {self._costs.active.size} at once"
            plans = self._with_drafts(plans, sources, context)
        self._plan = plan = self._best(plans)
        self._learn_worth()
        before, self._num_changes = self._num_changes, self._costs.note(self, plan.source is not None)
        self._is_steady = before == self._num_changes and plan.source in (None, self._newest)
        # The target stops before a model drafts: beside rounds that it goes on with, which would be thrown away, both would wait.
        self._makes_way = self._is_free and plan.source is not None
        if self._makes_way:
            self._plan = plan = NO_PLAN
        proposal = Proposal(report=DraftReport(reason=reason))
        if plan.lookup is not None:
            proposal = context.shape(await plan.lookup.propose(context, len(plan.chances)))
            self._num_before = proposal.num_choices()
        if plan.source is not None:
            self._newest, num_looked_up = plan.source, len(proposal)
            drafts = await plan.source.drafter.propose(context, plan.num_asked, plan.min_probability, proposal.tokens)
            proposal = context.shape(joined(proposal, drafts))
            self._num_drafted = proposal.num_choices() - self._num_before
            proposal = self._trimmed(plan.source, proposal, num_looked_up)
        if not context.request.trace:
            # Nothing else tells what was asked for.
            return proposal
        return replace(proposal, report=replace(proposal.report, num_asked=len(plan)))

    def _with_drafts(self, plans: Sequence[Plan], sources: Sequence[Source], context: Context) -> list[Plan]:
        """Adds plans that models' drafts continue where that gains, and drops the one without any if all draft.

        Generations that share forward passes decide together: one that drafts while the others do not makes them wait.
        """
        size, drafts = self._costs.active.size, self._costs.decision()
        is_early = self._costs.level.num_plain < PLAIN_FIRST * size
        if not self._bounds.min and (drafts is False or is_early):
            return [*plans]
        trial = self._costs.level.trial if drafts is True else None
        if trial is not None and not self._bounds.min:
            sources = [each for each in sources if each.joins(trial, context)]
            if not sources:
                return [*plans]
        is_held = drafts is True and self._held_until == self._costs.level.decided_until
        is_held = is_held and self._held.num_asked <= context.draft_room and self._held.source in (None, *sources)
        if is_held and len(plans) == 1:
            return [self._held]
        for each in sources:
            # What one alone learned counts less.
            each.rates.prior_weight = SHARED_WEIGHT * size

        # Without them the target could go on by itself.
        message_s = self._rounds.message_s if self._late_pays else 0.0

        def continued(plan: Plan, source: Source) -> Plan:
            return source.continued(
                plan, context, self._tokens_each, self._speed, message_s, self._unaided,
                must_draft=drafts is True, trial=trial if trial is not None and source.key == trial.source else None,
            )  # fmt: skip

        alone = [self._held] if is_held else [continued(NO_PLAN, each) for each in sources]
        looked_up = [plan for plan in plans if plan.chances]
        found = alone + [continued(plan, each) for plan in looked_up for each in sources if each.drafter.has_confidence]
        if drafts is None:
            best = self._best([*plans, *found])
            others = [] if best.chances or self._bounds.min else [each for each in sources if each is not best.source]
            trials = (each.trial(context, best, self._tokens_each, self._speed, message_s) for each in others)
            trial = next(filter(None, trials), None)
            self._costs.decide(any(plan.source for plan in found), trial)
            if trial is not None:
                return self._with_drafts(plans, sources, context)
            if self._costs.decision() is False and not self._bounds.min:
                return [*plans]
        self._held, self._held_until = self._best(alone), self._costs.level.decided_until
        return [*(looked_up if drafts is True else plans), *found]

    def _best(self, plans: Sequence[Plan]) -> Plan:
        return max(plans, key=lambda each: (min(len(each), self._bounds.min), each.gain))

    async def _plan_lookup(self, lookup: LookupDrafter, context: Context) -> Plan:
        """Plans up to the token that is no longer likely enough to be worth its place in the target's forward pass."""
        kinds = await lookup.candidates(context, min(lookup.max_draft_tokens or self._bounds.max, context.draft_room))
        rates = self._lookup_rates[lookup.name]
        for kind, is_right in lookup.take_hits():
            rates.learn(kind, is_right)
        if not kinds:
            return NO_PLAN
        chances, chance = list[float](), 1.0
        # Neighbors are of one kind.
        for kind, group in groupby(kinds):
            rate = rates[kind]
            for _ in group:
                chance *= rate
                chances.append(chance)
        num, gain = self._best_size(chances, num_choices=1 / self._tokens_each)
        num_late, late_gain, late_worth = self._best_late(chances)
        self._gain, self._late_worth = max(self._gain, gain), max(self._late_worth, late_worth)
        if self._is_free:
            num, gain = (num_late, late_gain) if self._late_pays else (0, 0.0)
        return Plan(gain, lookup, chances[:num]) if num else NO_PLAN

    def _best_late(self, chances: Sequence[float]) -> tuple[int, float, float]:
        """Returns how many drafts gain most for a target that goes on by itself, the choices gained, and what they are worth.

        The first of them come by themselves, while the drafts are on their way. They take no place in a forward pass, and
        gain nothing. Each costs a forward pass of its own, so that the drafts are worth less than they gain.
        """
        speed, rounds = self._speed, self._rounds
        num_before = rounds.num_late
        come, late = chances[:num_before], chances[num_before:]
        num, gain = self._best_size(late, reach=come[-1])
        gain -= speed * rounds.suggestion_s
        if num == 0 or gain <= 0:
            return 0, 0.0, 0.0
        return num_before + num, gain, gain - (speed * rounds.free_s - 1) * math.fsum(come)

    def _trimmed(self, source: Source, proposal: Proposal, num_looked_up: int) -> Proposal:
        """Drops drafts that the target need not see. `num_looked_up`: tokens before those of `source`."""
        chances = list(self._plan.chances)
        if proposal.is_forced:
            chances = _of_choices(chances[:num_looked_up], proposal.is_forced)
            of_model = _of_choices(proposal.report.confidences, proposal.is_forced[num_looked_up:])
            proposal = replace(proposal, report=replace(proposal.report, confidences=of_model))
        confidences = proposal.report.confidences
        if not (confidences and source.confidence.is_known):
            return proposal
        chance = chances[-1] if chances else 1.0
        if proposal.supports:
            num = self._num_drawn_kept(source, len(chances), chance, confidences)
        else:
            for confidence in confidences:
                chance *= source.confidence.chance(confidence)
                chances.append(chance)
            num, _ = self._best_size(chances, num_tokens=self._tokens_each)
        return proposal.first_choices(num)

    def _num_drawn_kept(self, source: Source, num_before: int, chance: float, confidences: Sequence[float]) -> int:
        """Returns how many choices to keep where a model's were drawn from their distributions.

        Whether one stays depends on those before it alone: dropped for what it is, or for what came after it, it would
        bias the output.
        """
        verify_s, num, tokens_each = self._rounds.verify_s, num_before + 1, self._tokens_each
        for confidence in confidences[:-1]:
            chance *= source.confidence.chance(confidence)
            if chance * source.rates["next"] < self._speed * (
                verify_s((num + 1) * tokens_each) - verify_s(num * tokens_each)
            ):
                break
            num += 1
        return max(num, self._bounds.min)

    def _best_size(
        self, chances: Sequence[float], num_choices: float = 1.0, num_tokens: float = 1.0, reach: float = 1.0
    ) -> tuple[int, float]:
        """Returns how many drafts with these chances gain most once they are made, and the choices gained.

        num_choices, num_tokens: of each draft.
        reach: the chance that a round comes which checks them.
        """
        if not chances:
            return 0, 0.0
        best, most, choices, speed = 0, 0.0, 0.0, self._speed
        seconds = self._rounds.verify_times(len(chances), num_tokens)
        for num, chance in enumerate(chances, start=1):
            choices += chance * num_choices
            gain = choices - reach * speed * (seconds[num] - seconds[0])
            if gain > most or num <= self._bounds.min:
                best, most = num, gain
        return best, most

    @property
    def _speed(self) -> float:
        """Returns choices per second of this generation, or of all that share forward passes with it: what a second is worth."""
        if self._known_speed:
            return self._known_speed
        plain_s = self._rounds.free_s if self._may_be_free else self._rounds.plain_s
        pace = self._pace if self._costs.active.size == 1 else self._costs.level.pace
        self._known_speed = max(
            1 / plain_s, (GUESSED_ROUNDS + pace.choices) / (GUESSED_ROUNDS * plain_s + pace.seconds)
        )
        return self._known_speed

    @property
    def _unaided(self) -> float:
        """Returns the share of the recent answer that came without looked-up drafts."""
        return self._num_unaided / self._num_recent

    def release(self) -> None:
        if self._num_chosen:
            self._experience.answer_length.add(self._num_chosen)
            self._experience.unaided.add(self._unaided)
        self._costs.note(self, is_drafting=False)
        super().release()

    def next_length(self) -> tuple[int, float]:
        """Asks the head for drafts while one that is accepted is worth more than the time of one more.

        A draft costs a forward pass of the head, and in the rounds that use it a row of the target's.
        """
        assert self._head is not None
        size, verify_s = self._costs.active.size, self._rounds.verify_s
        # Rounds with lookups are followed by such rounds, which need no drafts of the head.
        is_looked_up = self._plan.lookup not in (None, self._head)
        worth = self._experience.worth((size.bit_length(), self._is_greedy, is_looked_up))
        # A forward pass behind the target's takes longer than those that were measured one after the other.
        step_s = max(self._head_step.value, self._head.times(size))
        least = self._speed * (step_s + verify_s(2) - verify_s(1)) * self._tokens_each
        if self._bounds.min == 0 and (worth.value < 0 or least >= 1):
            # Until it is tried again.
            worth.value += WORTH_FORGETTING * (FIRST_WORTH - worth.value)
            return 0, 0.0
        self._asked_for = worth
        return self._bounds.max, 0.0 if self._bounds.min else least

    def _learn_worth(self) -> None:
        """Learns what the head's drafts of this round gain, less what they took in the round before."""
        if self._asked_for is not None and self._num_head_drafts:
            assert self._head is not None
            gain = self._plan.gain if self._plan.lookup is self._head else 0.0
            self._asked_for.add(gain - self._speed * self._head_s)
        self._asked_for, self._num_head_drafts = None, 0

    @property
    def goes_on(self) -> bool:
        return self._late_pays and self._plan.source is None and self._asked_for is None and not self._makes_way

    @property
    def _late_pays(self) -> bool:
        """Whether the messages saved are worth more than what is lost by drafts that come a round late."""
        return self._may_be_free and self._lost.value < self._speed * self._rounds.message_s

    @property
    def may_come_late(self) -> bool:
        return self._is_free

    def _began(self) -> Began:
        if not self._is_free:
            return Began.ASKED if self._plan.lookup is None else Began.LOOKED_UP
        return Began.FREE if self._plan.lookup is None else Began.SUGGESTING

    def learn(self, finished: Round) -> None:
        super().learn(finished)
        began = self._began()
        self._is_free = finished.verify_result.report.is_free
        num_drafts = len(finished.proposal)
        following = finished.verify_result.report.next_drafts
        self._num_head_drafts = 0 if following is None else len(following.tokens)
        self._head_s = finished.verify_result.report.drafting_us / 1e6
        last_ended_s, self._last_ended_s = self._last_ended_s, finished.verified_s
        if last_ended_s is None:
            # The head has read the prompt, for all rounds.
            self._head_s = self._num_head_drafts * self._head_step.value
            return
        if self._num_head_drafts:
            self._head_step.add(self._head_s / self._num_head_drafts)
        # Between two rounds a busy coordinator serves the others.
        seconds = finished.verified_s - last_ended_s
        drafted_by = self._plan.source if self._num_drafted else None
        forwards = None if drafted_by is None else drafted_by.forwards
        is_like_others = self._is_steady and self._costs.is_unchanged(self._num_changes)
        self._costs.learn(
            finished, seconds, forwards, self._num_drafted, is_like_others, self._num_unfed, began
        )  # fmt: skip
        if not self._costs.active.was_reading_since(last_ended_s):
            self._pace.add(finished.num_chosen, seconds)
        is_unaided = num_drafts == self._num_drafted
        self._num_unaided = UNAIDED_MEMORY * self._num_unaided + is_unaided * finished.num_chosen
        self._num_recent = UNAIDED_MEMORY * self._num_recent + finished.num_chosen
        self._num_chosen += finished.num_chosen
        for each in self._sources:
            if each is drafted_by:
                each.learn(finished, self._plan, self._num_before, self._num_drafted)
            each.count(finished, self._plan, self._speed, seconds)


def _of_choices(values: Sequence[float], is_forced: Sequence[bool]) -> list[float]:
    """Drops the values of forced tokens."""
    return [value for value, forced in zip(values, is_forced, strict=False) if not forced]


def joined(looked_up: Proposal, drafts: Proposal) -> Proposal:
    """Joins a model's drafts to looked-up tokens, which stay without a distribution."""
    if not looked_up.tokens:
        return drafts
    if not drafts.tokens:
        return looked_up
    report = replace(
        drafts.report, drafter=looked_up.report.drafter, continued_by=drafts.report.drafter,
        num_before=looked_up.num_choices(),
    )  # fmt: skip
    return Proposal([*looked_up.tokens, *drafts.tokens], drafts.supports, drafts.support_probs, report)
