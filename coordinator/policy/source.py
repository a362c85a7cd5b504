"""A draft model as a source of drafts: what they are likely to gain in a round, and what is learned from them."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordinator.context import Context
from coordinator.drafters.drafter import LookupDrafter, ModelDrafter
from coordinator.policy.costs import DRAFTING_ROUNDS, FORGETTING, MAX_TAIL, DraftForwards, Trial
from coordinator.policy.experience import LEAST_CONFIDENCE, Experience, Savings
from coordinator.stats import Round
from paceline.speculation_params import Bounds

# Prior probability that a draft is accepted if those before it are: of a model alone, and of one among several, which would
# else never show that it is better.
FIRST_RATE, FIRST_RIVAL_RATE = 0.75, 0.9
# Decisions after which a trial is considered, which takes the coordinator time.
ASKING_ROUNDS = 16


@dataclass(frozen=True, slots=True)
class Plan:
    """What to propose: looked-up tokens, then a model's choices. `chances`: that each looked-up token is accepted."""

    gain: float = 0.0
    lookup: LookupDrafter | None = None
    chances: Sequence[float] = ()
    # The model, the maximum choices to request from it, and the joint confidence below which it stops.
    source: "Source | None" = None
    num_asked: int = 0
    min_probability: float = 0.0
    # Set if the source is tried although it was not predicted to gain.
    trial: Trial | None = None

    def __len__(self) -> int:
        return len(self.chances) + self.num_asked


NO_PLAN = Plan()


class Source:
    """One generation's draft model of several, or the only one."""

    def __init__(
        self, drafter: ModelDrafter, bounds: Bounds, experience: Experience, is_greedy: bool, has_rivals: bool
    ) -> None:
        self.drafter, self._bounds, self._costs = drafter, bounds, experience.costs
        # Statistics are shared by it.
        self.key = drafter.name, drafter.draft_model
        self._experience, self._is_greedy = experience, is_greedy
        self._first_rate = partial(first_model_rate, FIRST_RIVAL_RATE if has_rivals else FIRST_RATE)
        self.rates = experience.rates(self.key, is_greedy, self._first_rate)
        self.confidence = experience.confidence(self.key, is_greedy)
        # Decisions without a trial.
        self._num_waited = 0

    @property
    def forwards(self) -> DraftForwards:
        return DraftForwards(self.key, self.drafter.times, self.drafter.num_at_once > 1)

    def continued(
        self, plan: Plan, context: Context, tokens_each: float, speed: float, message_s: float, unaided: float,
        must_draft: bool, trial: Trial | None = None, forgets: bool = False,
    ) -> Plan:  # fmt: skip
        """Adds the model's drafts to a plan, as many as gain.

        tokens_each: tokens per choice.
        speed: choices that a second is worth.
        message_s: that only a round with the model's drafts waits for.
        unaided: share of the answer in which nothing is looked up.
        must_draft: at least one, unless others are looked up.
        trial: plans by the first guess of its rates, which promises more than it was seen to keep.
        forgets: as in `CostModel.draft_s`.
        """
        rate = self._first_rate if trial is not None else self.rates.__getitem__
        model, verify_s = self.drafter, self._costs.rounds.verify_s
        draft_s = self._costs.draft_s(self.forwards, forgets)
        num_before, num_missed = len(plan.chances), len(context) - model.num_cached(context)
        num_fed, chance = num_before + min(max(1, num_missed), 2), plan.chances[-1] if plan.chances else 1.0
        # What the model has missed is read for the rest of the answer, as far as nothing is looked up there.
        reading_s = draft_s(num_before + num_missed, 1) - draft_s(num_fed, 1)
        # An answer is expected to go on for as many tokens as it has, plus the length of a recent one.
        rest = min(context.num_remaining, self._experience.answer_length.value + context.num_generated)
        reading_s /= max(1, unaided * rest)
        gain, num_asked, accepted, drafted = plan.gain, 0, 0.0, 0.0
        if must_draft and not plan.chances:
            gain = -math.inf
        looked_up, plain_s = math.fsum(plan.chances) / tokens_each, verify_s(0)
        most = min(self._bounds.max, context.draft_room) - num_before
        if model.num_at_once > 1:
            most = min(most, model.num_at_once)
        last = -math.inf
        for num in range(1, most + 1):
            accepted += chance * rate(("accepted", num))
            drafted += rate(("drafted", num))
            choices = looked_up + accepted
            seconds = message_s + draft_s(num_fed, drafted) + reading_s * (1 + choices)
            seconds += verify_s(num_before + drafted * tokens_each) - plain_s
            gained = choices - speed * seconds
            if gained > gain or num_before + num <= self._bounds.min:
                gain, num_asked = gained, num
            elif gained < last:
                # Further drafts are accepted less often and cost no less.
                break
            last = gained
        if num_asked == 0:
            return plan
        least = 0.0
        if model.has_confidence and (not model.stops_early or self._bounds.min > 1):
            # Only the target's forward pass has to do with how many of them come, or fewer may not come.
            least = LEAST_CONFIDENCE
        elif model.has_confidence:
            step_s = draft_s(num_fed, 2) - draft_s(num_fed, 1)
            step_s += verify_s(num_before + 2 * tokens_each) - verify_s(num_before + tokens_each)
            # One more draft pays while (chance of those before) * (its own) is worth its time.
            least = self.confidence.inverse(min(1.0, speed * step_s / (chance * rate("next"))))
            num_asked = most
        return replace(plan, gain=gain, source=self, num_asked=num_asked, min_probability=least, trial=trial)

    def reading_s(self, context: Context) -> float:
        """Predicts what it takes to read what the model has missed."""
        draft_s, num_missed = self._costs.draft_s(self.forwards), len(context) - self.drafter.num_cached(context)
        return draft_s(max(1, num_missed), 1) - draft_s(1, 1)

    def joins(self, trial: Trial, context: Context) -> bool:
        """Returns whether a trial that another generation may have begun is of this source and pays for what this one reads."""
        num_missed = len(context) - self.drafter.num_cached(context)
        return self.key == trial.source and (num_missed <= MAX_TAIL or self.reading_s(context) <= trial.reading_s)

    def trial(self, context: Context, best: Plan, tokens_each: float, speed: float, message_s: float) -> Trial | None:
        """Returns a trial of all generations in place of `best` if enough was saved for what it is likely to lose."""
        self._num_waited += 1
        if self._num_waited % ASKING_ROUNDS != 1:
            return None
        reading_s, verify_s = self.reading_s(context), self._costs.rounds.verify_s
        trial = Trial(self.key, best.gain, reading_s)
        plan = self.continued(NO_PLAN, context, tokens_each, speed, message_s, 1.0, must_draft=True, trial=trial)
        if not plan.num_asked:
            return None
        round_s = message_s + self._costs.draft_s(self.forwards)(1, plan.num_asked)
        round_s += verify_s(plan.num_asked * tokens_each) - verify_s(0)
        likely = self.continued(NO_PLAN, context, tokens_each, speed, message_s, 1.0, must_draft=True, forgets=True)
        size, reading = self._costs.active.size, speed * reading_s
        loss = size * (DRAFTING_ROUNDS * max(0.0, best.gain - likely.gain) + reading)
        # Should nothing be accepted.
        most = size * (DRAFTING_ROUNDS * (best.gain + speed * round_s) + reading)
        return trial if self._savings.affords(loss, max(loss, most)) else None

    def count(self, finished: Round, plan: Plan, speed: float, seconds: float) -> None:
        """Saves for trials in rounds without it, and spends what a round of a trial lost. `seconds`: that it took."""
        lost_s, trial = seconds - self._costs.rounds.plain_s, self._costs.level.trial
        if plan.source is not self:
            # Its text goes on: what all generations learned takes the place of its own statistics.
            self.rates.forget(1 - FORGETTING / self._costs.active.size)
            self._savings.save(finished.num_chosen)
            if trial is not None and trial.source == self.key and self._costs.decision():
                # It waits for those that try the source.
                self._savings.spend(trial.gain + speed * lost_s - (finished.num_chosen - 1))
        elif plan.trial is not None:
            self._savings.spend(plan.trial.gain + speed * lost_s - (finished.num_chosen - 1))
            if self._savings.choices < 0 and plan.trial is trial:
                self._costs.end_trial()

    @property
    def _savings(self) -> Savings:
        return self._experience.savings[self.key, self._is_greedy, self._costs.active.size.bit_length()]

    def learn(self, finished: Round, plan: Plan, num_before: int, num_drafted: int) -> None:
        """Learns from a round with its drafts. `num_before`: looked-up choices before them."""
        num_accepted = finished.num_chosen - 1 - num_before
        for num in range(1, plan.num_asked + 1):
            self.rates.learn(("drafted", num), num_drafted >= num)
            if num_accepted >= 0:
                self.rates.learn(("accepted", num), num_accepted >= num)
        for index in range(min(finished.proposal.num_choices() - num_before, num_accepted + 1)):
            self.rates.learn("next", index < num_accepted)
            for confidence in finished.proposal.report.confidences[index : index + 1]:
                self.confidence.learn(confidence, index < num_accepted)


def first_model_rate(rate: float, kind: Hashable) -> float:
    """Returns the prior of "next", of ("drafted", k), k or more drafts if asked for, and of ("accepted", k)."""
    if kind == "next":
        return rate
    assert isinstance(kind, tuple)
    what, num = kind
    return 1.0 if what == "drafted" else rate**num
