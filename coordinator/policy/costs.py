"""What a round costs: the servers' own forward times, corrected by the rounds that ran.

A model info tells the seconds of a forward pass by its number of tokens. A server computes for longer than that where the
context is long or others share its processors, and messages and waits add to it:

    seconds = factor * forwards + overhead

Servers report what they computed, so both are observed in each round. They are learned at each level of concurrency, for
rounds with drafts, for those without, and for each draft model's drafting. Only rounds like most of the others count: a plain
round that waits for another generation's drafts says nothing of how fast all would be without.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass, field, replace

from coordinator.admission import ActiveGenerations
from coordinator.policy.free_rounds import Began, FreeRounds
from coordinator.remote.server_load import ForwardTimes
from coordinator.stats import Round
from paceline.recent_mean import RecentMean

# Weight of the newest observation; the first ones count alike.
RECENT = 0.05
# An observation is limited to this multiple of the prediction: a pause says nothing of the next round.
MAX_SURPRISE = 2.0
# Share of the way from the drafting's overhead to a plain round's that a round without drafts takes: a try that was
# disturbed is repeated some day.
FORGETTING = 0.002
# Factor on the weight of older rounds in a pace, for a round of each generation; and rounds of each that make it known.
PACE_MEMORY, KNOWN_ROUNDS = 0.95, 0.5
# Rounds to learn from while each generation has one.
SAMPLED = 8
# Rounds of each generation that a decision for all holds; and a decision for drafts that were not tried for long. Between
# decisions against drafts nothing is planned: that takes the coordinator time.
DECIDED_ROUNDS, TRIAL_ROUNDS = 8, 4
# A draft that reads a longer tail is predicted, but not learned from: only shorter forward passes were measured.
MAX_TAIL = 64


@dataclass(slots=True)
class Correction:
    factor: float = 1.0
    overhead_s: float = 0.0
    num_rounds: int = 0

    def seconds(self, forwards_s: float) -> float:
        return self.factor * forwards_s + self.overhead_s

    def learn(self, forwards_s: float, computed_s: float, seconds: float, is_measured: bool) -> None:
        """`computed_s`: the server's part of `seconds`; 0 if unknown. `is_measured`: whether `forwards_s` is no guess."""
        self.num_rounds += 1
        weight = max(RECENT, 1 / self.num_rounds)
        if is_measured or weight < 0.25:
            seconds = min(seconds, MAX_SURPRISE * self.seconds(forwards_s))
        computed_s = min(computed_s or seconds, seconds)
        self.factor += weight * (computed_s / forwards_s - self.factor)
        self.overhead_s += weight * (seconds - computed_s - self.overhead_s)

    def or_like(self, other: "Correction") -> "Correction":
        """Returns `other` while nothing was learned."""
        return self if self.num_rounds else other


@dataclass(slots=True)
class Pace:
    """Recent choices of a generation, their seconds, and the rounds that made them."""

    choices: float = 0.0
    seconds: float = 0.0
    num_rounds: float = 0.0

    def add(self, num_choices: int, seconds: float, memory: float) -> None:
        """`memory`: factor on the weight of older rounds."""
        self.forget(memory)
        self.choices += num_choices
        self.seconds += seconds
        self.num_rounds += 1

    def forget(self, factor: float) -> None:
        self.choices, self.seconds, self.num_rounds = (
            factor * each for each in (self.choices, self.seconds, self.num_rounds)
        )


@dataclass(slots=True)
class DraftForwards:
    """A draft model's forward passes: one for each token, or one for all. `source`: what their costs are learned by."""

    source: Hashable
    times: ForwardTimes
    are_parallel: bool

    def seconds(self, num_active: int, num_fed: float, num_drafts: float) -> float:
        """Returns the times of `num_drafts` tokens after feeding `num_fed`, for each of the active generations."""
        if self.are_parallel:
            return self.times(num_active * (num_fed + num_drafts - 1))
        return self.times(num_active * num_fed) + (num_drafts - 1) * self.times(num_active)


@dataclass(slots=True)
class Level:
    """What was learned at one level of concurrency."""

    plain: Correction = field(default_factory=Correction)
    verifying: Correction = field(default_factory=Correction)
    free: FreeRounds = field(default_factory=FreeRounds)
    # By source.
    drafting: dict[Hashable, Correction] = field(default_factory=lambda: defaultdict(Correction))
    # Paces of all generations while none drafts, and while most do.
    paces: dict[bool, Pace] = field(default_factory=lambda: {False: Pace(), True: Pace()})
    # Rounds without a model's drafts, those that teach nothing included, and all rounds.
    num_plain: int = 0
    num_rounds: int = 0
    # Whether all draft, and the number of rounds up to which that holds.
    drafts: bool = False
    decided_until: int = 0

    def guess(self) -> "Level":
        """Returns a first guess for another level."""
        guess = Level(_guess(self.plain), _guess(self.verifying))
        guess.drafting.update((source, _guess(each)) for source, each in self.drafting.items())
        return guess


def _guess(learned: Correction) -> Correction:
    return replace(learned, num_rounds=min(1, learned.num_rounds))


class CostModel:
    """Predicts seconds as if all active generations did the same, for they decide alike and share the forward passes.

    Where several are active they decide together, for some rounds. Their paces with and without drafts are then seen too,
    and overrule predictions.
    """

    def __init__(self, active: ActiveGenerations, target_times: Callable[[], ForwardTimes]) -> None:
        self.active = active
        self._target_times = target_times
        # By the bit length of the number of active generations.
        self._levels: dict[int, Level] = {}
        # Generations whose current round has a model's drafts; whether most do, or none (None: some); its changes.
        self._drafting: set[object] = set()
        self._most_draft: bool | None = False
        self._num_changes = 0
        # Recent mean of drafts in a round.
        self._num_drafts = RecentMean(RECENT)

    def note(self, generation: object, is_drafting: bool) -> int:
        """Notes what a generation's next round does. Returns a number for `learn`."""
        (self._drafting.add if is_drafting else self._drafting.discard)(generation)
        most_draft = True if 2 * len(self._drafting) >= self.active.size else None if self._drafting else False
        if most_draft is not self._most_draft:
            self._most_draft, self._num_changes = most_draft, self._num_changes + 1
        return self._num_changes

    def is_unchanged(self, num_changes: int) -> bool:
        """Returns whether generations do as they did when `note` returned this number."""
        return num_changes == self._num_changes

    def decision(self) -> bool | None:
        """Returns whether all that share forward passes draft; None if that is to be decided, or for one alone."""
        level = self.level
        return level.drafts if self.active.size > 1 and level.num_rounds < level.decided_until else None

    def decide(self, gains: bool) -> None:
        """Decides for some rounds of all. `gains`: what is predicted, which what was seen overrules."""
        level, seen = self.level, self._pays()
        level.drafts = gains if seen is None else seen
        num_rounds = TRIAL_ROUNDS if seen is None and gains else DECIDED_ROUNDS
        level.decided_until = level.num_rounds + num_rounds * self.active.size

    def _pays(self) -> bool | None:
        """Returns whether a model's drafts were seen to pay at this level; None if that is not known."""
        if not (self.knows_pace(drafting=False) and self.knows_pace(drafting=True)):
            return None
        without, with_drafts = (self.level.paces[each] for each in (False, True))
        return with_drafts.choices * without.seconds > without.choices * with_drafts.seconds

    def knows_pace(self, drafting: bool) -> bool:
        return self.level.paces[drafting].num_rounds >= KNOWN_ROUNDS * min(self.active.size, SAMPLED)

    @property
    def pace(self) -> Pace:
        return self.level.paces[bool(self._most_draft)]

    @property
    def level(self) -> Level:
        size = self.active.size.bit_length()
        level = self._levels.get(size)
        if level is None:
            nearest = min(self._levels, key=lambda other: abs(other - size), default=None)
            level = self._levels[size] = Level() if nearest is None else self._levels[nearest].guess()
        return level

    def verify_s(self, num_drafts: float) -> float:
        """Predicts the target's part of a round."""
        level = self.level
        correction = level.verifying.or_like(level.plain) if num_drafts else level.plain.or_like(level.verifying)
        return correction.seconds(self._target_times()(self.active.size * (1 + num_drafts)))

    def verify_times(self, most_drafts: int, num_tokens: float) -> list[float]:
        """Predicts the same for 0 to `most_drafts` drafts of `num_tokens` tokens each."""
        level, size, times = self.level, self.active.size, self._target_times()
        verifying = level.verifying.or_like(level.plain)
        counts = range(1, most_drafts + 1)
        return [self.verify_s(0), *(verifying.seconds(times(size * (1 + num * num_tokens))) for num in counts)]

    @property
    def free_saves_s(self) -> float:
        """Predicts what a round without drafts saves that the target goes on with by itself."""
        level = self.level
        return level.free.saves_s(level.plain.overhead_s)

    @property
    def suggestion_s(self) -> float:
        """Predicts what it takes of such a round's time to send drafts for the next one."""
        level = self.level
        return level.free.suggestion_s(level.plain.overhead_s)

    @property
    def num_late(self) -> int:
        """Predicts how many such rounds begin while drafts are on their way: one, or more where messages take longer."""
        message_s = self.level.plain.overhead_s
        return 1 + int(message_s / (self.verify_s(0) - message_s))

    def draft_s(self, forwards: DraftForwards) -> Callable[[float, float], float]:
        """Returns what predicts the drafting of `num_drafts` tokens after feeding `num_fed`."""
        size, correction = self.active.size, self.level.drafting[forwards.source]
        if not correction.num_rounds:
            correction = Correction(overhead_s=self.level.plain.overhead_s)
        return lambda num_fed, num_drafts: correction.seconds(forwards.seconds(size, num_fed, num_drafts))

    def learn(
        self, finished: Round, seconds: float, forwards: DraftForwards | None, num_drafted: int, is_like_others: bool,
        num_unfed: int, sources: Collection[Hashable], began: Began = Began.ASKED,
    ) -> None:  # fmt: skip
        """Learns from a round.

        `seconds`: since the generation's last round ended. `forwards`, `num_drafted`: of a model's drafts, or None and 0.
        `is_like_others`: whether most generations did the same, in the round before too.
        `num_unfed`: tokens that the target read before the drafts: 1, plus forced ones.
        `sources`: all that the generation may use.
        """
        level, num_active, num_drafts = self.level, self.active.size, len(finished.proposal)
        level.num_plain += num_drafted == 0
        level.num_rounds += 1
        # A sample is enough, and learning from all would take a busy coordinator's time.
        each = max(1, num_active // SAMPLED)
        if level.num_rounds % each or self.active.was_reading_since(finished.verified_s - seconds):
            return
        part = each / num_active
        is_common = is_like_others and self._most_draft is bool(num_drafted)
        if is_common:
            level.paces[num_drafted > 0].add(finished.num_chosen, seconds, PACE_MEMORY**part)
            level.paces[num_drafted == 0].forget(1 - FORGETTING * part)
        draft, verify = finished.proposal.report, finished.verify_result.report
        num_tokens = num_active - 1 + num_unfed + num_drafts + (num_active - 1) * self._num_drafts.value
        self._num_drafts.add(num_drafts)
        correction = level.verifying if num_drafts else level.plain
        target_times = self._target_times()
        forwards_s = target_times(num_tokens)
        # Others tell nothing of messages that are waited for.
        if (is_common or not correction.num_rounds) and began is Began.ASKED:
            correction.learn(forwards_s, verify.compute_us / 1e6, finished.verify_s, target_times.is_measured)
        if is_common and num_drafts == 0:
            plain = level.plain
            overhead_s = min(seconds, MAX_SURPRISE * plain.seconds(forwards_s)) - plain.factor * forwards_s
            level.free.learn(began, overhead_s, plain.overhead_s)
        for source in sources:
            drafting = level.drafting[source]
            if forwards is None or source != forwards.source:
                drafting.overhead_s += FORGETTING * part * (level.plain.overhead_s - drafting.overhead_s)
            elif draft.is_ahead or draft.num_tail_tokens > MAX_TAIL:
                # What the round waited for, or how long the draft read, says nothing of the drafting.
                continue
            elif is_common or not drafting.num_rounds:
                forwards_s = forwards.seconds(num_active, draft.num_tail_tokens, num_drafted)
                drafting.learn(forwards_s, draft.compute_us / 1e6, finished.propose_s, forwards.times.is_measured)
