"""A draft model as a source of drafts: what they are likely to gain in a round, and what is learned from them."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from coordinator.context import Context
from coordinator.drafters.drafter import LookupDrafter, ModelDrafter
from coordinator.policy.costs import DraftForwards
from coordinator.policy.experience import LEAST_CONFIDENCE, Experience
from coordinator.stats import Round
from paceline.speculation_params import Bounds

# Prior probability that a draft is accepted if those before it are: of a model alone, and of one among several, which would
# else never show that it is better.
FIRST_RATE, FIRST_RIVAL_RATE = 0.75, 0.9
# Fraction of a source's statistics that a round without its drafts forgets, so that it is tried again.
RATES_FORGETTING = 0.005
# An answer is expected to go on for as many tokens as it has, plus this number.
EXPECTED_REST = 128


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
        first_rate = partial(first_model_rate, FIRST_RIVAL_RATE if has_rivals else FIRST_RATE)
        self.rates = experience.rates(self.key, is_greedy, first_rate)
        self.confidence = experience.confidence(self.key, is_greedy)

    @property
    def forwards(self) -> DraftForwards:
        return DraftForwards(self.key, self.drafter.times, self.drafter.num_at_once > 1)

    def continued(
        self, plan: Plan, context: Context, tokens_each: float, speed: float, message_s: float, unaided: float,
        must_draft: bool,
    ) -> Plan:  # fmt: skip
        """Adds the model's drafts to a plan, as many as gain.

        tokens_each: tokens per choice.
        speed: choices that a second is worth.
        message_s: that only a round with the model's drafts waits for.
        unaided: share of the answer in which nothing is looked up.
        must_draft: at least one, unless others are looked up.
        """
        model, verify_s, draft_s = self.drafter, self._costs.verify_s, self._costs.draft_s(self.forwards)
        num_before, num_missed = len(plan.chances), len(context) - model.num_cached(context)
        num_fed, chance = num_before + min(max(1, num_missed), 2), plan.chances[-1] if plan.chances else 1.0
        # What the model has missed is read for the rest of the answer, as far as nothing is looked up there.
        reading_s = draft_s(num_before + num_missed, 1) - draft_s(num_fed, 1)
        reading_s /= max(1, unaided * min(context.num_remaining, EXPECTED_REST + context.num_generated))
        gain, num_asked, accepted, drafted = plan.gain, 0, 0.0, 0.0
        if must_draft and not plan.chances:
            gain = -math.inf
        looked_up, plain_s = math.fsum(plan.chances) / tokens_each, verify_s(0)
        most = min(self._bounds.max, context.draft_room) - num_before
        if model.num_at_once > 1:
            most = min(most, model.num_at_once)
        last = -math.inf
        for num in range(1, most + 1):
            accepted += chance * self.rates["accepted", num]
            drafted += self.rates["drafted", num]
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
            least = self.confidence.inverse(min(1.0, speed * step_s / (chance * self.rates["next"])))
            num_asked = most
        return replace(plan, gain=gain, source=self, num_asked=num_asked, min_probability=least)

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

    def forget(self) -> None:
        """Notes a round without its drafts."""
        self.rates.forget(1 - RATES_FORGETTING / self._costs.active.size)


def first_model_rate(rate: float, kind: Hashable) -> float:
    """Returns the prior of "next", of ("drafted", k), k or more drafts if asked for, and of ("accepted", k)."""
    if kind == "next":
        return rate
    assert isinstance(kind, tuple)
    what, num = kind
    return 1.0 if what == "drafted" else rate**num
