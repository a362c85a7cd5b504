"""The adaptive policy, the default: it makes the proposal that gains most in every round (see `coordinator.policy`).

It counts choices. Without an output format every token is one. With a format, a choice brings the forced tokens after it,
drafted or not; as drafts they make the target's forward longer.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, LookupDrafter, ModelDrafter
from coordinator.drafters.rates import Rates
from coordinator.policy.costs import CostModel, Pace
from coordinator.policy.policy import Policy
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.speculation import Bounds

# Prior probability that a token is accepted if those before it are: looked up, and drafted by a model.
FIRST_LOOKUP_RATE, FIRST_MODEL_RATE = 0.6, 0.75
# Factors on the weight of older cases, for each new one: of all generations, and of a generation's own.
MEMORY, OWN_MEMORY = 0.998, 0.98
# Weight of the first guess in cases, and of all generations' rates in cases of a generation's own.
FIRST_WEIGHT, SHARED_WEIGHT = 6.0, 10.0
# Fraction of the model's statistics that a round without its drafts forgets, so that it is tried again.
RATES_FORGETTING = 0.005
# An answer is expected to go on for as many tokens as it has, plus this number.
EXPECTED_REST = 128
# Step of the calibration of confidences, the cases that it needs before it counts, and the least confidence to ask for.
CONFIDENCE_RATE, FIRST_CONFIDENCES, LEAST_CONFIDENCE = 0.05, 8, 1e-30
# More than that of a plan without drafts.
LEAST_GAIN = 1e-9
# Most rounds of each generation without drafts, to learn their pace, before those with a model's.
PLAIN_FIRST = 8
# Factor on the weight of older rounds in a generation's speed, and weight of plain rounds as a first guess.
SPEED_MEMORY, PLAIN_ROUNDS = 0.95, 8.0


class Confidence:
    """Chance of acceptance by the draft model's own probability: probability ** exponent, with a learned exponent.

    The exponent is 1 for a model that is right as often as it says, and smaller where drafts share the target's noise.
    """

    def __init__(self) -> None:
        self._exponent, self._num_cases = 1.0, 0

    @property
    def is_known(self) -> bool:
        """Whether there were enough cases to drop a draft for its confidence."""
        return self._num_cases >= FIRST_CONFIDENCES

    def chance(self, probability: float) -> float:
        return probability**self._exponent

    def inverse(self, chance: float) -> float:
        """Returns the probability whose chance is `chance`, above 0, which would ask for no confidences."""
        return max(LEAST_CONFIDENCE, chance ** (1 / self._exponent)) if self.is_known else LEAST_CONFIDENCE

    def learn(self, probability: float, is_accepted: bool) -> None:
        """Follows the gradient of the case's log-likelihood by the logarithm of the exponent."""
        chance = min(1 - 1e-6, self.chance(max(probability, 1e-9)))
        odds = 1.0 if is_accepted else -chance / (1 - chance)
        self._exponent = min(4.0, max(0.01, self._exponent * math.exp(CONFIDENCE_RATE * math.log(chance) * odds)))
        self._num_cases += 1


@dataclass(slots=True)
class Experience:
    """Shares what generations learn. Greedy and sampled texts have rates of their own."""

    costs: CostModel
    _rates: dict[tuple[str, bool], Rates] = field(default_factory=dict)
    _confidences: dict[tuple[str, bool], Confidence] = field(default_factory=dict)

    def rates(self, drafter: str, is_greedy: bool, prior: Callable[[Hashable], float]) -> Rates:
        """Returns rates for one generation, with the rates of all generations as their prior."""
        shared = self._rates.setdefault((drafter, is_greedy), Rates(prior, FIRST_WEIGHT, MEMORY))
        return Rates(shared.__getitem__, SHARED_WEIGHT, OWN_MEMORY, shared)

    def confidence(self, drafter: str, is_greedy: bool) -> Confidence:
        return self._confidences.setdefault((drafter, is_greedy), Confidence())


@dataclass(frozen=True, slots=True)
class Plan:
    """What to propose: looked-up tokens, then a model's choices. `chances`: that each looked-up token is accepted."""

    gain: float = 0.0
    lookup: LookupDrafter | None = None
    chances: Sequence[float] = ()
    # Maximum choices to request from the model, and the joint confidence below which it stops.
    num_asked: int = 0
    least_confidence: float = 0.0

    def __len__(self) -> int:
        return len(self.chances) + self.num_asked


NO_PLAN = Plan()


class AdaptivePolicy(Policy):
    """One generation's choice of a drafter and of the number of tokens in every round."""

    def __init__(self, drafters: DrafterSet, bounds: Bounds, experience: Experience, is_greedy: bool) -> None:
        model = drafters.model
        super().__init__([*drafters.lookups, *drafters.standby, *([] if model is None else [model])])
        self._set, self._bounds, self._costs = drafters, bounds, experience.costs
        self._lookup_rates = {
            each.name: experience.rates(each.name, is_greedy, lambda kind: FIRST_LOOKUP_RATE)
            for each in (*drafters.lookups, *drafters.standby)
        }
        name = "" if model is None else model.name
        self._rates = experience.rates(name, is_greedy, first_model_rate)
        self._confidence = experience.confidence(name, is_greedy)
        # The current round's plan, how many choices were looked up, and how many the model made.
        self._plan, self._num_before, self._num_drafted = NO_PLAN, 0, 0
        # Tokens per choice, and tokens that the target has not read.
        self._tokens_each, self._num_unfed = 1.0, 1
        # The plan with a model's drafts alone, and the decision of all that it holds for: planning takes a busy coordinator
        # as long as the rest of a round.
        self._held, self._held_until = NO_PLAN, 0
        # What `CostModel.note` said in this round, and whether it said so before: in the first round with drafts the model
        # reads what it missed.
        self._num_changes, self._is_steady = 0, False
        self._pace = Pace()
        # None before the prompt's round is over, which does not count.
        self._last_ended_s: float | None = None
        # In this round; 0 until it is asked for.
        self._known_speed = 0.0

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._plan, self._num_before, self._num_drafted = NO_PLAN, 0, 0
        self._tokens_each, self._num_unfed = context.tokens_per_choice, len(context) - context.num_fed
        if context.draft_room < 1:
            return Proposal(report=DraftReport(reason="one token is left to generate"))
        model = self._set.model
        reason = "no draft model" if model is None else model.absence(context)
        plans = [NO_PLAN]
        self._known_speed = 0.0
        for lookup in (*self._set.lookups, *(self._set.standby if reason else ())):
            plan = await self._plan_lookup(lookup, context)
            if plan.chances:
                # Without a match it is the first plan again, which the model need not continue twice.
                plans.append(plan)
        if model is not None and not reason:
            reason = f"no draft pays at {self._costs.active.size} at once"
            plans += self._continued(plans, model, context)
        self._plan = plan = max(plans, key=lambda each: (min(len(each), self._bounds.min), each.gain))
        before, self._num_changes = self._num_changes, self._costs.note(self, plan.num_asked > 0)
        self._is_steady = before == self._num_changes
        proposal = Proposal(report=DraftReport(reason=reason))
        if plan.lookup is not None:
            proposal = context.shape(await plan.lookup.propose(context, len(plan.chances)))
            self._num_before = proposal.num_choices()
        if plan.num_asked and model is not None:
            num_looked_up = len(proposal)
            drafts = await model.propose(context, plan.num_asked, plan.least_confidence, proposal.tokens)
            proposal = context.shape(_joined(proposal, drafts))
            self._num_drafted = proposal.num_choices() - self._num_before
            proposal = self._trimmed(proposal, num_looked_up)
        if not context.request.trace:
            # Nothing else tells what was asked for.
            return proposal
        return replace(proposal, report=replace(proposal.report, num_asked=len(plan)))

    def _continued(self, plans: Sequence[Plan], model: ModelDrafter, context: Context) -> list[Plan]:
        """Continues plans with a model's drafts where that gains.

        Generations that share forwards decide together: one that drafts while the others do not makes them wait.
        """
        size, drafts = self._costs.active.size, self._costs.decision()
        # What one alone learned counts less.
        self._rates.prior_weight = SHARED_WEIGHT * size
        is_early = self._costs.level.num_plain < PLAIN_FIRST * size and not self._costs.knows_pace(drafting=False)
        if not self._bounds.min and (drafts is False or is_early):
            return []
        is_held = drafts is True and self._held_until == self._costs.level.decided_until
        found = [
            self._held
            if is_held and not plan.chances and self._held.num_asked <= context.draft_room
            else self._continue(plan, model, context, must_draft=drafts is True)
            for plan in plans
            if not plan.chances or model.has_confidence
        ]
        if drafts is None:
            self._costs.decide(any(plan.num_asked for plan in found))
            if self._costs.decision() is False and not self._bounds.min:
                return []
        self._held, self._held_until = found[0], self._costs.level.decided_until
        return found

    async def _plan_lookup(self, lookup: LookupDrafter, context: Context) -> Plan:
        """Plans up to the token that is no longer likely enough to be worth its place in the target's forward."""
        kinds = await lookup.candidates(context, min(lookup.max_draft_tokens or self._bounds.max, context.draft_room))
        rates = self._lookup_rates[lookup.name]
        for kind, is_right in lookup.take_hits():
            rates.learn(kind, is_right)
        chances: list[float] = []
        for kind in kinds:
            chances.append(rates[kind] * (chances[-1] if chances else 1.0))
        num, gain = self._best_size(chances, num_choices=1 / self._tokens_each)
        return Plan(gain, lookup, chances[:num]) if num else NO_PLAN

    def _continue(self, plan: Plan, model: ModelDrafter, context: Context, must_draft: bool) -> Plan:
        """Adds a model's drafts to a plan, as many as gain. `must_draft`: at least one, unless others are looked up."""
        num_before, verify_s = len(plan.chances), self._costs.verify_s
        num_missed = len(context) - model.num_cached(context)
        num_fed, chance = num_before + min(max(1, num_missed), 2), plan.chances[-1] if plan.chances else 1.0
        reading_s = self._draft_s(model, num_before + num_missed, 1) - self._draft_s(model, num_fed, 1)
        # The rounds of the rest of the answer share the reading of what the model has missed.
        reading_s /= max(1, min(context.num_remaining, EXPECTED_REST + context.num_generated))
        gain, num_asked, accepted, drafted = plan.gain, 0, 0.0, 0.0
        if must_draft and not plan.chances:
            gain = -math.inf
        tokens_each = self._tokens_each
        looked_up, plain_s = math.fsum(plan.chances) / tokens_each, verify_s(0)
        most = min(self._bounds.max, context.draft_room) - num_before
        if model.num_at_once > 1:
            most = min(most, model.num_at_once)
        last = -math.inf
        for num in range(1, most + 1):
            accepted += chance * self._rates["accepted", num]
            drafted += self._rates["drafted", num]
            choices = looked_up + accepted
            seconds = self._draft_s(model, num_fed, drafted) + reading_s * (1 + choices)
            seconds += verify_s(num_before + drafted * tokens_each) - plain_s
            gained = choices - self._speed * seconds
            if gained > gain or num_before + num <= self._bounds.min:
                gain, num_asked = gained, num
            elif gained < last:
                # Further drafts are accepted less often and cost no less.
                break
            last = gained
        best = replace(plan, gain=max(gain, LEAST_GAIN) if must_draft else gain, num_asked=num_asked)
        if num_asked == 0 or not model.has_confidence:
            return best
        if not model.stops_early or self._bounds.min > 1:
            # Only the target's forward has to do with how many of them come, or fewer may not come.
            return replace(best, least_confidence=LEAST_CONFIDENCE)
        step_s = self._draft_s(model, num_fed, 2) - self._draft_s(model, num_fed, 1)
        step_s += verify_s(num_before + 2 * tokens_each) - verify_s(num_before + tokens_each)
        # One more draft pays while (chance of those before) * (its own) is worth its time.
        least = min(1.0, self._speed * step_s / (chance * self._rates["next"]))
        return replace(best, num_asked=most, least_confidence=self._confidence.inverse(least))

    def _trimmed(self, proposal: Proposal, num_looked_up: int) -> Proposal:
        """Drops drafts that the target need not see. `num_looked_up`: tokens before the model's."""
        chances = list(self._plan.chances)
        if proposal.is_forced:
            chances = _of_choices(chances[:num_looked_up], proposal.is_forced)
            of_model = _of_choices(proposal.report.confidences, proposal.is_forced[num_looked_up:])
            proposal = replace(proposal, report=replace(proposal.report, confidences=of_model))
        confidences = proposal.report.confidences
        if not (confidences and self._confidence.is_known):
            return proposal
        chance = chances[-1] if chances else 1.0
        if proposal.supports:
            num = self._num_drawn_kept(len(chances), chance, confidences)
        else:
            for confidence in confidences:
                chance *= self._confidence.chance(confidence)
                chances.append(chance)
            num, _ = self._best_size(chances, num_tokens=self._tokens_each)
        return proposal.first_choices(num)

    def _num_drawn_kept(self, num_before: int, chance: float, confidences: Sequence[float]) -> int:
        """Returns how many choices to keep where a model's were drawn from their distributions.

        Whether one stays depends on those before it alone: dropped for what it is, or for what came after it, it would
        bias the output.
        """
        verify_s, num, tokens_each = self._costs.verify_s, num_before + 1, self._tokens_each
        for confidence in confidences[:-1]:
            chance *= self._confidence.chance(confidence)
            if chance * self._rates["next"] < self._speed * (
                verify_s((num + 1) * tokens_each) - verify_s(num * tokens_each)
            ):
                break
            num += 1
        return max(num, self._bounds.min)

    def _best_size(
        self, chances: Sequence[float], num_choices: float = 1.0, num_tokens: float = 1.0
    ) -> tuple[int, float]:
        """Returns how many drafts with these chances gain most once they are made, and the choices gained.

        `num_choices`, `num_tokens`: of each draft.
        """
        if not chances:
            return 0, 0.0
        best, most, choices, speed = 0, 0.0, 0.0, self._speed
        plain_s, *seconds = self._costs.verify_times(len(chances), num_tokens)
        for num, chance in enumerate(chances, start=1):
            choices += chance * num_choices
            gain = choices - speed * (seconds[num - 1] - plain_s)
            if gain > most or num <= self._bounds.min:
                best, most = num, gain
        return best, most

    def _draft_s(self, model: ModelDrafter, num_fed: float, num_drafts: float) -> float:
        return self._costs.draft_s(model.times, num_fed, num_drafts, model.num_at_once > 1)

    @property
    def _speed(self) -> float:
        """Returns choices per second of this generation, or of all that share forwards with it: what a second is worth."""
        if self._known_speed:
            return self._known_speed
        plain_s = self._costs.verify_s(0)
        pace = self._pace if self._costs.active.size == 1 else self._costs.pace
        self._known_speed = max(1 / plain_s, (PLAIN_ROUNDS + pace.choices) / (PLAIN_ROUNDS * plain_s + pace.seconds))
        return self._known_speed

    def release(self) -> None:
        self._costs.note(self, is_drafting=False)
        super().release()

    def learn(self, finished: Round) -> None:
        last_ended_s, self._last_ended_s = self._last_ended_s, finished.verified_s
        if last_ended_s is None:
            return
        # Between two rounds a busy coordinator serves the others.
        seconds = finished.verified_s - last_ended_s
        model = self._set.model
        times = None if model is None else model.times
        is_parallel = model is not None and model.num_at_once > 1
        is_like_others = self._is_steady and self._costs.is_unchanged(self._num_changes)
        self._costs.learn(finished, seconds, times, self._num_drafted, is_parallel, is_like_others, self._num_unfed)
        if not self._costs.active.was_reading_since(last_ended_s):
            self._pace.add(finished.num_chosen, seconds, SPEED_MEMORY)
        if self._num_drafted:
            self._learn_drafts(finished)
        else:
            self._rates.forget(1 - RATES_FORGETTING / self._costs.active.size)

    def _learn_drafts(self, finished: Round) -> None:
        num_accepted = finished.num_chosen - 1 - self._num_before
        for num in range(1, self._plan.num_asked + 1):
            self._rates.learn(("drafted", num), self._num_drafted >= num)
            if num_accepted >= 0:
                self._rates.learn(("accepted", num), num_accepted >= num)
        for index in range(min(finished.proposal.num_choices() - self._num_before, num_accepted + 1)):
            self._rates.learn("next", index < num_accepted)
            for confidence in finished.proposal.report.confidences[index : index + 1]:
                self._confidence.learn(confidence, index < num_accepted)


def first_model_rate(kind: Hashable) -> float:
    """Returns the prior of "next", of ("drafted", k), k or more drafts if asked for, and of ("accepted", k)."""
    if kind == "next":
        return FIRST_MODEL_RATE
    assert isinstance(kind, tuple)
    what, num = kind
    return 1.0 if what == "drafted" else FIRST_MODEL_RATE**num


def _of_choices(values: Sequence[float], is_forced: Sequence[bool]) -> list[float]:
    """Drops the values of forced tokens."""
    return [value for value, forced in zip(values, is_forced, strict=False) if not forced]


def _joined(looked_up: Proposal, drafts: Proposal) -> Proposal:
    """Joins a model's drafts to looked-up tokens, which then are drawn with certainty."""
    if not looked_up.tokens:
        return drafts
    if not drafts.tokens:
        return looked_up
    num = len(looked_up)
    report = replace(
        drafts.report, drafter=looked_up.report.drafter, continued_by=drafts.report.drafter,
        num_before=looked_up.num_choices(),
    )  # fmt: skip
    ids = [np.array([token], dtype=np.int64) for token in looked_up.tokens] if drafts.supports else []
    return Proposal(
        [*looked_up.tokens, *drafts.tokens], [*ids, *drafts.supports],
        [*([np.ones(1, np.float32)] * num if ids else []), *drafts.support_probs], report,
    )  # fmt: skip
