"""What generations learn of drafters and share: how often their drafts are accepted, and what rounds cost."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from coordinator.drafters.rates import Rates
from coordinator.policy.costs import CostModel
from paceline.recent_mean import RecentMean

# Factors on the weight of older cases, for each new one: of all generations, and of a generation's own.
MEMORY, OWN_MEMORY = 0.998, 0.98
# Weight of the first guess in cases, and of all generations' rates in cases of a generation's own.
FIRST_WEIGHT, SHARED_WEIGHT = 6.0, 8.0
# Step of the calibration of confidences, the cases that it needs before it counts, and the least confidence to ask for.
CONFIDENCE_RATE, FIRST_CONFIDENCES, LEAST_CONFIDENCE = 0.05, 8, 1e-30
# What asking a draft head is worth: weight of the newest round, the first guess and how many rounds that counts for, and the
# share of the way back to it that each round takes in which the head is not asked.
WORTH_RECENT, FIRST_WORTH, FIRST_ROUNDS, WORTH_FORGETTING = 0.05, 0.1, 8, 0.004
# Of the choices made without a source, this share may be lost by trying it; and what may be lost at first, in choices.
TRIAL_SHARE, FIRST_SAVINGS = 0.005, 8.0
# Weight of the newest answer, and first guesses of what answers are like.
ANSWER_RECENT, FIRST_LENGTH, FIRST_UNAIDED = 0.05, 128, 0.5


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
class Savings:
    """What may be lost by trying a source that is not predicted to gain, in choices."""

    choices: float = FIRST_SAVINGS
    # The lowest value of `choices` that the newest trial may leave.
    _least: float = 0.0

    def save(self, num_choices: int) -> None:
        """Notes choices made without the source."""
        self.choices += TRIAL_SHARE * num_choices

    def affords(self, loss: float, most: float) -> bool:
        """Returns whether a trial may begin that is likely to lose `loss`, and `most` if nothing is accepted."""
        # Not so much that trial follows trial.
        self.choices = min(self.choices, max(FIRST_SAVINGS, 2 * most))
        self._least = self.choices - most
        return self.choices >= loss

    def spend(self, loss: float) -> None:
        """Notes what a round has lost by a trial."""
        # A pause is not its fault.
        self.choices = max(min(self.choices, self._least), self.choices - max(0.0, loss))


@dataclass(slots=True)
class Experience:
    """Shares what generations learn, by source of drafts. Greedy and sampled texts have rates of their own."""

    costs: CostModel
    _rates: dict[tuple[Hashable, bool], Rates] = field(default_factory=dict)
    # Seconds of a draft head's drafts, each.
    head_step: RecentMean = field(default_factory=lambda: RecentMean(WORTH_RECENT))
    _worths: dict[Hashable, RecentMean] = field(default_factory=dict)
    # Of answers: choices, and the share of them made without looked-up drafts.
    answer_length: RecentMean = field(default_factory=lambda: RecentMean(ANSWER_RECENT, FIRST_LENGTH, 1))
    unaided: RecentMean = field(default_factory=lambda: RecentMean(ANSWER_RECENT, FIRST_UNAIDED, 1))
    # By source, concurrency and whether texts are greedy.
    savings: dict[Hashable, Savings] = field(default_factory=lambda: defaultdict(Savings))
    _confidences: dict[tuple[Hashable, bool], Confidence] = field(default_factory=dict)

    def rates(self, source: Hashable, is_greedy: bool, prior: Callable[[Hashable], float]) -> Rates:
        """Returns rates for one generation, with the rates of all generations as their prior."""
        shared = self._rates.setdefault((source, is_greedy), Rates(prior, FIRST_WEIGHT, MEMORY))
        return Rates(shared.__getitem__, SHARED_WEIGHT, OWN_MEMORY, shared)

    def worth(self, kind: Hashable) -> RecentMean:
        """Returns the choices that a draft head's drafts gain behind rounds of this kind, less what they cost."""
        if (worth := self._worths.get(kind)) is None:
            worth = self._worths[kind] = RecentMean(WORTH_RECENT, FIRST_WORTH, FIRST_ROUNDS)
        return worth

    def confidence(self, source: Hashable, is_greedy: bool) -> Confidence:
        return self._confidences.setdefault((source, is_greedy), Confidence())
