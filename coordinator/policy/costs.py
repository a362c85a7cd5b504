"""What a round costs: the servers' own forward times, corrected by the rounds that ran.

Servers tell the seconds of a forward pass by its number of tokens, and learn them from their work
(`paceline.engine.scheduling.learned_times`). A server computes for longer than that where others share the forward pass, where the
context is long, or where it is a slower one of a pool; and messages and waits add to it:

    seconds = factor * forwards + overhead

Servers report what they computed for a round, so both are observed in each round. They are learned at each level of concurrency,
overheads for rounds with drafts, for those without, and for each draft model's drafting. Only rounds like most of the others
count: a plain round that waits for another generation's drafts says nothing of how fast all would be without.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from coordinator.admission import ActiveGenerations
from coordinator.policy.free_rounds import Began, FreeRounds
from coordinator.remote.server_load import ForwardTimes
from coordinator.stats import Round
from paceline.recent_mean import RecentMean

# Weight of the newest observation; the first ones count alike.
RECENT = 0.05
# An observation is limited to this multiple of the prediction: a pause says nothing of the next round. Where forward times are a
# guess, the first few rounds are not.
MAX_SURPRISE, GUESSED_ROUNDS = 2.0, 3
# Factor on the weight of older rounds in a pace, for a round of each generation; and rounds of each that make it known.
PACE_MEMORY, KNOWN_ROUNDS = 0.95, 0.5
# Share of the pace of one way that a round the other way forgets: what was seen long ago does not overrule predictions.
PACE_FORGETTING = 0.002
# Rounds to learn from while each generation has one.
SAMPLED = 8
# Rounds of each generation that a decision for all holds; and a decision for drafts that are tried. Between decisions against
# drafts nothing is planned: that takes the coordinator time.
DECIDED_ROUNDS, TRIAL_ROUNDS = 8, 4
# A draft that reads a longer tail is predicted, but not learned from: only shorter forward passes were measured.
MAX_TAIL = 64


@dataclass(slots=True)
class Correction:
    """How many times longer a server computes than its forward times tell."""

    factor: float = 1.0
    num_rounds: int = 0
    # What the server told when this was last learned.
    times: ForwardTimes | None = None

    def learn(
        self, computed_s: float, times: ForwardTimes, forwards: Callable[[ForwardTimes], float], follows: bool = True
    ) -> None:
        """`forwards`: the seconds of a round's forward passes by given times. `follows`: such a round was not long ago."""
        forwards_s = forwards(times)
        if self.times is not None and self.times is not times:
            # What the server has learned of such rounds does not count twice; after others, it knows better.
            self.factor = self.factor * forwards(self.times) / forwards_s if follows else 1.0
            self.num_rounds = self.num_rounds if follows else 0
        self.times = times
        self.num_rounds += 1
        ratio = computed_s / forwards_s
        if times.is_measured or self.num_rounds > GUESSED_ROUNDS:
            ratio = min(max(ratio, self.factor / MAX_SURPRISE), MAX_SURPRISE * self.factor)
        self.factor += max(RECENT, 1 / self.num_rounds) * (ratio - self.factor)

    def guess(self) -> "Correction":
        """Returns a first guess for another level."""
        return replace(self, num_rounds=min(1, self.num_rounds))


@dataclass(slots=True)
class Overhead:
    """What rounds take beside what servers compute."""

    seconds: float = 0.0
    num_rounds: int = 0

    def learn(self, seconds: float, predicted_s: float) -> None:
        """`predicted_s`: of the forward passes."""
        self.num_rounds += 1
        seconds = min(seconds, MAX_SURPRISE * (predicted_s + self.seconds))
        self.seconds += max(RECENT, 1 / self.num_rounds) * (seconds - self.seconds)

    def or_like(self, other: "Overhead") -> "Overhead":
        """Returns `other` while nothing was learned."""
        return self if self.num_rounds else other

    def guess(self) -> "Overhead":
        """Returns a first guess for another level."""
        return replace(self, num_rounds=min(1, self.num_rounds))


@dataclass(slots=True)
class Drafting:
    """What is learned of a draft model's drafting."""

    correction: Correction = field(default_factory=Correction)
    overhead: Overhead = field(default_factory=Overhead)
    # The newest round that it was learned in, of all rounds.
    newest_round: int = 0

    def guess(self) -> "Drafting":
        """Returns a first guess for another level."""
        return Drafting(self.correction.guess(), self.overhead.guess())


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


@dataclass(frozen=True, slots=True)
class Trial:
    """`gain`: of the best plan without it. `reading_s`: the longest reading of what was missed that it pays for."""

    source: Hashable
    gain: float
    reading_s: float


@dataclass(slots=True)
class Level:
    """What was learned at one level of concurrency."""

    target: Correction = field(default_factory=Correction)
    plain: Overhead = field(default_factory=Overhead)
    verifying: Overhead = field(default_factory=Overhead)
    free: FreeRounds = field(default_factory=FreeRounds)
    # By source.
    drafting: dict[Hashable, Drafting] = field(default_factory=lambda: defaultdict(Drafting))
    # Paces of all generations while none drafts, and while most do.
    paces: dict[bool, Pace] = field(default_factory=lambda: {False: Pace(), True: Pace()})
    # Rounds without a model's drafts, those that teach nothing included, and all rounds.
    num_plain: int = 0
    num_rounds: int = 0
    # Whether all draft, and the number of rounds up to which that holds.
    drafts: bool = False
    decided_until: int = 0
    # If they try a source, which would else lose.
    trial: Trial | None = None

    def guess(self) -> "Level":
        """Returns a first guess for another level."""
        guess = Level(self.target.guess(), self.plain.guess(), self.verifying.guess())
        guess.drafting.update((source, each.guess()) for source, each in self.drafting.items())
        return guess


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
        """Returns whether all that share forward passes draft; None if that is to be decided, or for one alone without a trial."""
        level = self.level
        is_held = level.num_rounds < level.decided_until and (self.active.size > 1 or level.trial is not None)
        return level.drafts if is_held else None

    def decide(self, gains: bool, trial: Trial | None = None) -> None:
        """Decides for some rounds of all. `gains`: what is predicted, which what was seen overrules."""
        level, seen = self.level, self._pays()
        level.trial, is_tried = trial, trial is not None or (seen is None and gains)
        level.drafts = is_tried if seen is None or trial is not None else seen
        level.decided_until = level.num_rounds + (TRIAL_ROUNDS if is_tried else DECIDED_ROUNDS) * self.active.size

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
        overhead = level.verifying.or_like(level.plain) if num_drafts else level.plain.or_like(level.verifying)
        return level.target.factor * self._target_times()(self.active.size * (1 + num_drafts)) + overhead.seconds

    def verify_times(self, most_drafts: int, num_tokens: float) -> list[float]:
        """Predicts the same for 0 to `most_drafts` drafts of `num_tokens` tokens each."""
        level, size, times = self.level, self.active.size, self._target_times()
        factor = level.target.factor
        overhead_s = level.verifying.or_like(level.plain).seconds
        counts = range(1, most_drafts + 1)
        return [self.verify_s(0), *(factor * times(size * (1 + num * num_tokens)) + overhead_s for num in counts)]

    @property
    def free_saves_s(self) -> float:
        """Predicts what a round without drafts saves that the target goes on with by itself."""
        level = self.level
        return level.free.saves_s(level.plain.seconds)

    @property
    def suggestion_s(self) -> float:
        """Predicts what it takes of such a round's time to send drafts for the next one."""
        level = self.level
        return level.free.suggestion_s(level.plain.seconds)

    @property
    def num_late(self) -> int:
        """Predicts how many such rounds begin while drafts are on their way: one, or more where messages take longer."""
        message_s = self.level.plain.seconds
        return 1 + int(message_s / (self.verify_s(0) - message_s))

    def draft_s(self, forwards: DraftForwards) -> Callable[[float, float], float]:
        """Returns what predicts the drafting of `num_drafts` tokens after feeding `num_fed`."""
        size, level = self.active.size, self.level
        drafting = level.drafting[forwards.source]
        factor, overhead_s = drafting.correction.factor, drafting.overhead.or_like(level.plain).seconds
        return lambda num_fed, num_drafts: factor * forwards.seconds(size, num_fed, num_drafts) + overhead_s

    def learn(
        self, finished: Round, seconds: float, forwards: DraftForwards | None, num_drafted: int, is_like_others: bool,
        num_unfed: int, began: Began = Began.ASKED,
    ) -> None:  # fmt: skip
        """Learns from a round.

        `seconds`: since the generation's last round ended. `forwards`, `num_drafted`: of a model's drafts, or None and 0.
        `is_like_others`: whether most generations did the same, in the round before too.
        `num_unfed`: tokens that the target read before the drafts: 1, plus forced ones.
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
            level.paces[num_drafted == 0].forget(1 - PACE_FORGETTING * part)
        draft, verify = finished.proposal.report, finished.verify_result.report
        num_tokens = num_active - 1 + num_unfed + num_drafts + (num_active - 1) * self._num_drafts.value
        self._num_drafts.add(num_drafts)
        overhead = level.verifying if num_drafts else level.plain
        times, computed_s = self._target_times(), verify.compute_us / 1e6 or finished.verify_s
        predicted_s = level.target.factor * times(num_tokens)
        if is_common or not overhead.num_rounds:
            level.target.learn(computed_s, times, lambda times: times(num_tokens))
            # Others tell nothing of messages that are waited for.
            if began is Began.ASKED:
                overhead.learn(max(0.0, finished.verify_s - computed_s), predicted_s)
        if is_common and num_drafts == 0:
            free_s = min(seconds, MAX_SURPRISE * (predicted_s + level.plain.seconds)) - predicted_s
            level.free.learn(began, free_s, level.plain.seconds)
        if forwards is None or draft.is_ahead or draft.num_tail_tokens > MAX_TAIL:
            # What the round waited for, or how long the draft read, says nothing of the drafting.
            return
        drafting, counts = level.drafting[forwards.source], (num_active, draft.num_tail_tokens, num_drafted)
        if is_common or not drafting.overhead.num_rounds:
            computed_s = draft.compute_us / 1e6 or finished.propose_s
            drafting.overhead.learn(
                max(0.0, finished.propose_s - computed_s), drafting.correction.factor * forwards.seconds(*counts)
            )
            follows = level.num_rounds - drafting.newest_round <= DECIDED_ROUNDS * num_active
            drafting.newest_round = level.num_rounds
            drafting.correction.learn(
                computed_s, forwards.times, lambda times: replace(forwards, times=times).seconds(*counts), follows
            )
