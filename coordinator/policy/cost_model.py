"""The cost model: times of recent rounds, and the acceptance rates that all generations share.

Learns what a row of the target's forward costs, what a draft costs, and what it costs a draft model to read the context
that it has missed.
"""

import math
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from statistics import fmean

from coordinator.drafters.drafter import Rates
from coordinator.policy.bandit import MAX_SKIPPED, Bandit, Probe
from coordinator.policy.measurements import Line, Speedup
from coordinator.stats import Round

# First guess of a row's cost, in forwards of one row.
GUESSED_ROW = 0.04
# First guess of a draft's cost, as a fraction of the first drafting time over its drafts: low, so that the next is made.
GUESSED_STEP = 1.0
# Longest tail of a Propose after a round with drafts. A longer tail is read only once.
NORMAL_TAIL = 2
# Factor on the weight of older reading times, for each new one.
READING_MEMORY = 0.98
# A reading time is limited to this multiple of the expected time.
READING_OUTLIER = 3.0
# Factors on the weight of older cases, for each new one: of all generations, and of a generation's own.
MEMORY, OWN_MEMORY = 0.998, 0.98
# Weight of the prior in cases, and of the rates of all generations in cases of a generation's own.
FIRST_WEIGHT, SHARED_WEIGHT = 4.0, 10.0


class ActiveGenerations:
    """The running generations, which share the target's forwards.

    The more there are, the more a draft costs. While the target reads the prompt of one, all others wait longer.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running: set[object] = set()
        # Generations whose prompt has not been read, and the time when a prompt was last read.
        self._reading: set[object] = set()
        self._read_s = -math.inf

    @property
    def size(self) -> int:
        """Counts the active generations: at least 1, as the caller is active."""
        return max(1, len(self._running))

    def join(self, generation: object) -> None:
        self._running.add(generation)
        self._reading.add(generation)

    def has_read(self, generation: object) -> None:
        """Notes that the generation's prompt has been read. Further calls change nothing."""
        if generation in self._reading:
            self._reading.remove(generation)
            self._read_s = self._clock()

    def leave(self, generation: object) -> None:
        self.has_read(generation)
        self._running.discard(generation)

    def was_reading_since(self, then_s: float) -> bool:
        """Returns whether any prompt was being read after `then_s`, in seconds of the clock."""
        return bool(self._reading) or self._read_s > then_s


def guessed_row(num_active: int) -> float:
    """Guesses what one draft in every generation costs, in forwards without drafts."""
    rows = GUESSED_ROW * num_active
    return rows / (1 - GUESSED_ROW + rows)


class ReadingTime:
    """Time a draft model takes to read missed context: a recent mean per token."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def __call__(self, num_tokens: int) -> float:
        """Returns the expected seconds; 0 until measured."""
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
    """Times at one level of concurrency: the target's and each drafter's by the number of drafts."""

    verify: Line = field(default_factory=lambda: Line(GUESSED_ROW))
    propose: dict[str, Line] = field(default_factory=dict)
    reading: ReadingTime = field(default_factory=ReadingTime)
    bandit: Bandit = field(default_factory=Bandit)

    def drafting(self, drafter: str) -> Line:
        return self.propose.setdefault(drafter, Line(GUESSED_STEP))

    def guess(self, ratio: float) -> "Level":
        """Estimates the level with `ratio` times as many generations, in which one draft each adds `ratio` rows.

        Drafting and reading start unknown: times measured under load would keep a model from drafting alone.
        """
        return Level(self.verify.guess(ratio))


class CostModel:
    """What rounds cost, shared by all generations of a coordinator.

    Generations share forwards, so the drafts of all of them make a round longer. The target's times are learned against
    the mean number of drafts of rounds that ran together, for each power of two of the number of active generations.
    Rounds during which a prompt was read are not used.
    """

    def __init__(self, active: ActiveGenerations) -> None:
        self._active = active
        self._num_skipped = 0
        # By the bit length of the number of active generations.
        self._levels: dict[int, Level] = {}
        self._last, self._last_active = Level(), 1
        # Rounds that may overlap with rounds still running.
        self._recent: list[Round] = []
        # When the last round ended, and the last with a draft model's tokens (time.perf_counter).
        self.now_s = self.drafted_s = 0.0

    @property
    def num_active(self) -> int:
        return self._active.size

    @property
    def level(self) -> Level:
        """Returns the present level of concurrency; before its first round, a guess from the last level."""
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
        return self.level.reading(num_tokens)

    def learn(self, finished: Round, by_model: bool) -> None:
        """Learns from a round. `by_model`: its drafts took time."""
        self.now_s = finished.verified_s
        if by_model and len(finished.proposal) > 0:
            self._learn_drafting(finished)
        # Generations that share forwards end their rounds at nearly the same time. Half a round later all have ended.
        middle_s = (finished.started_s + finished.verified_s) / 2
        over = [each for each in self._recent if each.verified_s <= middle_s]
        self._recent = [each for each in self._recent if each.verified_s > middle_s] + [finished]
        if not over:
            return
        # A forward that reads a prompt has as many rows as it may have, whatever is drafted.
        was_disturbed = self.overlapped_a_prompt(*over)
        self._num_skipped = self._num_skipped + 1 if was_disturbed else 0
        if not was_disturbed or self._num_skipped > MAX_SKIPPED:
            drafts, seconds = fmean(len(each.proposal) for each in over), fmean(each.verify_s for each in over)
            self.level.verify.learn(drafts, seconds, tells_slope=not was_disturbed)

    def _learn_drafting(self, finished: Round) -> None:
        proposal = finished.proposal
        self.drafted_s = self.now_s
        line = self.level.drafting(proposal.report.drafter)
        if proposal.report.num_tail_tokens <= NORMAL_TAIL:
            line.learn(len(proposal), finished.propose_s)
        else:
            self.level.reading.learn(proposal.report.num_tail_tokens, finished.propose_s - line(len(proposal)))

    def overlapped_a_prompt(self, *rounds: Round) -> bool:
        return self._active.was_reading_since(min(each.started_s for each in rounds))


class SharedRates:
    """One generation's rates, with those of all generations as their prior."""

    def __init__(self, shared: Rates) -> None:
        self.shared = shared
        self._own = Rates(shared.__getitem__, SHARED_WEIGHT, OWN_MEMORY)

    def __getitem__(self, kind: Hashable) -> float:
        return self._own[kind]

    def learn(self, kind: Hashable, is_success: bool) -> None:
        self.shared.learn(kind, is_success)
        self._own.learn(kind, is_success)


class Experience:
    """What all generations have taught. Greedy and sampled texts differ in acceptance rates and in speedup."""

    def __init__(self, active: ActiveGenerations) -> None:
        self.costs = CostModel(active)
        self.probe = Probe(0.0, 0.0)
        self._speedups = {is_greedy: Speedup() for is_greedy in (True, False)}
        self._rates: dict[tuple[str, bool], Rates] = {}

    def speedup(self, is_greedy: bool) -> Speedup:
        return self._speedups[is_greedy]

    def rates(self, drafter: str, is_greedy: bool, prior: Callable[[Hashable], float]) -> SharedRates:
        """Returns rates for one generation. `prior`: the first guess for a kind of case."""
        return SharedRates(self._rates.setdefault((drafter, is_greedy), Rates(prior, FIRST_WEIGHT, MEMORY)))
