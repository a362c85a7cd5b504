"""Times of recent rounds: a row of the target's forward, a draft, reading what a draft model has missed."""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from statistics import fmean

from coordinator.drafters.drafter import Rates
from coordinator.policy.bandit import MOST_SKIPPED, Probe, Trial
from coordinator.policy.measurements import Line, Pace
from coordinator.reports import DraftedBy
from coordinator.stats import Round


class ActiveGenerations:
    """All generations that a coordinator runs."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running: set[object] = set()
        # Generations whose prompt is not read yet, and the time when a prompt was last read.
        self._reading: set[object] = set()
        self._read_s = -math.inf

    @property
    def size(self) -> int:
        """Number of active generations, at least 1: the one that asks is active."""
        return max(1, len(self._running))

    def join(self, generation: object) -> None:
        """A generation begins, and its prompt is not read yet."""
        self._running.add(generation)
        self._reading.add(generation)

    def has_read(self, generation: object) -> None:
        """The generation's prompt is read. Further calls change nothing."""
        if generation in self._reading:
            self._reading.remove(generation)
            self._read_s = self._clock()

    def leave(self, generation: object) -> None:
        self.has_read(generation)
        self._running.discard(generation)

    def was_reading_since(self, then_s: float) -> bool:
        """Whether any prompt was being read after `then_s`, in seconds of the clock."""
        return bool(self._reading) or self._read_s > then_s


# The first guess of a row's cost, in forwards of one row.
GUESSED_ROW = 0.04


def guessed_row(num_active: int) -> float:
    """The first guess of what a draft of every generation costs, in forwards without drafts."""
    rows = GUESSED_ROW * num_active
    return rows / (1 - GUESSED_ROW + rows)


# The first guess of a draft's cost, as a fraction of the first drafting over its drafts: low, so that the next is made.
GUESSED_STEP = 1.0
# Tail tokens of a Propose if the round before it had drafts too. A longer tail is read only once.
NORMAL_TAIL = 2
# Factor on the weight of older reading times, for each new one.
READING_MEMORY = 0.98
# A reading time is limited to this multiple of the expected time.
READING_OUTLIER = 3.0


class Reading:
    """What it takes a draft model to read context that it missed: a recent mean, by the token."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def __call__(self, num_tokens: int) -> float:
        """Expected seconds; 0 until measured."""
        if num_tokens <= NORMAL_TAIL or self._tokens == 0:
            return 0.0
        return self._seconds / self._tokens * num_tokens

    def learn(self, num_tokens: int, seconds: float) -> None:
        if self._tokens > 0:
            seconds = min(seconds, READING_OUTLIER * self(num_tokens))
        self._tokens = self._tokens * READING_MEMORY + num_tokens
        self._seconds = self._seconds * READING_MEMORY + max(0.0, seconds)


@dataclass(slots=True)
class Level:
    """Times at a number of active generations: the target's by its drafts, each drafter's by its drafts, a reading's by its
    tokens."""

    verify: Line = field(default_factory=lambda: Line(GUESSED_ROW))
    propose: dict[DraftedBy, Line] = field(default_factory=dict)
    reading: Reading = field(default_factory=Reading)
    trial: Trial = field(default_factory=Trial)

    def drafting(self, drafter: DraftedBy) -> Line:
        return self.propose.setdefault(drafter, Line(GUESSED_STEP))

    def guess(self, ratio: float) -> "Level":
        """A first estimate for `ratio` times as many generations: each one's draft brings the forward `ratio` rows.

        What drafting and reading take there is not known: a time measured in a crowd, where one waits for the others,
        would keep a model from drafting alone.
        """
        return Level(self.verify.guess(ratio))


class Costs:
    """What rounds take. All generations of a coordinator share it.

    Sequences share forwards, so the drafts of all of them make a round longer. So the target's times are learned against
    the mean number of drafts of rounds that ran together. Times depend on the number of active generations, so they are
    kept for each power of two of it. Rounds that ran beside the reading of a prompt are not used.
    """

    def __init__(self, active: ActiveGenerations) -> None:
        self._active = active
        self._num_skipped = 0
        # By the number of bits of the number of active generations.
        self._levels: dict[int, Level] = {}
        self._last, self._last_active = Level(), 1
        # Rounds that other rounds may still run beside.
        self._recent: list[Round] = []
        # When the last round ended, and the last with a draft model's tokens (time.perf_counter).
        self.now_s = self.drafted_s = 0.0

    @property
    def num_active(self) -> int:
        return self._active.size

    @property
    def level(self) -> Level:
        """Of the present number of active generations; before any round of its own, a guess from the last one's."""
        num_active = self._active.size
        bits = num_active.bit_length()
        if bits not in self._levels:
            is_known = self._last.verify.is_known
            guess = (
                self._last.guess(num_active / self._last_active) if is_known else Level(Line(guessed_row(num_active)))
            )
            self._levels[bits] = guess
        self._last, self._last_active = self._levels[bits], num_active
        return self._last

    def reading_s(self, num_tokens: int) -> float:
        """Expected seconds for a draft model to read context that it missed; 0 until measured."""
        return self.level.reading(num_tokens)

    def learn(self, finished: Round) -> None:
        self.now_s = finished.verified_s
        if len(finished.proposal) > 0:
            self._learn_drafting(finished)
        # Sequences that share forwards end their rounds at nearly the same time. Half a round later all have ended.
        middle_s = (finished.started_s + finished.verified_s) / 2
        over = [each for each in self._recent if each.verified_s <= middle_s]
        self._recent = [each for each in self._recent if each.verified_s > middle_s] + [finished]
        if not over:
            return
        # Beside a prompt a forward has as many rows as it may have, whatever is drafted.
        was_disturbed = self.was_beside_a_prompt(*over)
        self._num_skipped = self._num_skipped + 1 if was_disturbed else 0
        if not was_disturbed or self._num_skipped > MOST_SKIPPED:
            drafts, seconds = fmean(len(each.proposal) for each in over), fmean(each.verify_s for each in over)
            self.level.verify.learn(drafts, seconds, tells_slope=not was_disturbed)

    def _learn_drafting(self, finished: Round) -> None:
        proposal = finished.proposal
        if proposal.report.drafter in (DraftedBy.NGRAM, DraftedBy.SUFFIX, DraftedBy.PREDICTION):
            return
        self.drafted_s = self.now_s
        line = self.level.drafting(proposal.report.drafter)
        if proposal.report.num_tail_tokens <= NORMAL_TAIL:
            line.learn(len(proposal), finished.propose_s)
        else:
            self.level.reading.learn(proposal.report.num_tail_tokens, finished.propose_s - line(len(proposal)))

    def was_beside_a_prompt(self, *rounds: Round) -> bool:
        """Whether a prompt was being read while they ran."""
        return self._active.was_reading_since(min(each.started_s for each in rounds))


# Factors on the weight of older cases, for each new one: of all generations, and of a generation's own.
MEMORY, OWN_MEMORY = 0.998, 0.98
# The first guess counts as so many cases, and the experience of all generations as so many of one's own.
FIRST_WEIGHT, SHARED_WEIGHT = 4.0, 10.0


class Experience:
    """Costs, and how often each source is right: greedy and sampled texts differ in that, and in their pace."""

    def __init__(self, active: ActiveGenerations) -> None:
        self.costs = Costs(active)
        self.probe = Probe(0.0, 0.0)
        self._paces = {is_greedy: Pace() for is_greedy in (True, False)}
        self._rates: dict[tuple[DraftedBy, bool], Rates] = {}

    def pace(self, is_greedy: bool) -> Pace:
        return self._paces[is_greedy]

    def rates(self, drafter: DraftedBy, is_greedy: bool, first: Callable[[Hashable], float]) -> "SharedRates":
        """`first`: the first guess for a kind of case."""
        shared = self._rates.setdefault((drafter, is_greedy), Rates(first, FIRST_WEIGHT, MEMORY))
        return SharedRates(shared)


class SharedRates:
    """One generation's rates, which begin with those of all generations."""

    def __init__(self, shared: Rates) -> None:
        self.shared = shared
        self._own = Rates(shared.__getitem__, SHARED_WEIGHT, OWN_MEMORY)

    def __getitem__(self, kind: Hashable) -> float:
        return self._own[kind]

    def learn(self, kind: Hashable, has_happened: bool) -> None:
        self.shared.learn(kind, has_happened)
        self._own.learn(kind, has_happened)
