"""When a free worker should wait for a fuller batch.

A forward reads all weights, for one row as for twenty. Sequences that start a step apart would
stay a step apart for ever, as two groups that take turns, each paying for forwards of its own.
So a worker that is free, with n jobs at hand, waits up to a time w for m sequences that were
answered lately and are about to come back, where that shortens the sum of all waits:

    n w < m (F - w)     those m would wait for the step in progress, F - w longer

F is the part of a step that does not grow with its rows, which a step of their own would cost; or,
where a long prompt's chunk is at hand, the time of the whole step.

On a shared device the neighbour computes for just those sequences that are away. While it does, a wait costs
nothing (see `engine/turns.py`), and when its turn ends those it answered are on their way here: they get the
time to come through, so that one that fell behind by a step is in step again with the others. For that a
fraction of F is enough, and the turn's record says when all have come.
"""

import time
from collections.abc import Iterable

# Weight of the newest observation in what is usual.
SMOOTHING = 0.3
# A fixed cost that has grown (another clock, a fuller machine) is believed at this pace a step: slowly, since
# under load every step is a long one, and would be taken for fixed.
FORGETTING = 0.001
# How much later than usual a sequence may be and still be waited for.
LATENESS = 1.5
LATENESS_S = 0.5e-3
# Longest time to come through from the neighbour, in fixed costs.
PEER_WAIT = 0.5
# From so many rows on a step is a chunk, in which all wait for the rows of one.
CHUNK_ROWS = 64


class ReturnTime:
    """How long a sequence is usually away between an answer and its next job."""

    def __init__(self) -> None:
        self._left_s: float | None = None
        self._usual_s: float | None = None

    def leave(self, at_s: float) -> None:
        """It was answered."""
        self._left_s = at_s

    def arrive(self, at_s: float) -> None:
        """It came back with a job."""
        if self._left_s is not None:
            away_s = max(0.0, at_s - self._left_s)
            self._usual_s = away_s if self._usual_s is None else self._usual_s + SMOOTHING * (away_s - self._usual_s)
        self._left_s = None

    def is_longer(self, seconds: float, now_s: float) -> bool:
        """Whether it was answered and has been away for more than `seconds`."""
        return self._left_s is not None and now_s - self._left_s > seconds

    def expected_s(self, now_s: float) -> float | None:
        """When it should be back; None if nothing is known of it, or it is overdue."""
        if self._left_s is None or self._usual_s is None:
            return None
        if now_s - self._left_s > LATENESS * self._usual_s + LATENESS_S:
            return None
        return max(now_s, self._left_s + self._usual_s)


class BatchingPolicy:
    """One worker's policy."""

    def __init__(self, waits: bool) -> None:
        """`waits`: False never waits for anyone."""
        self._waits = waits
        self._fixed_s: float | None = None
        # Of a chunk.
        self._row_s = 0.0

    def count_step(self, duration_s: float, num_rows: int) -> None:
        """Learns a step's fixed cost, the shortest of late, and what a chunk's row costs."""
        if self._fixed_s is None or duration_s < self._fixed_s:
            self._fixed_s = duration_s
        else:
            self._fixed_s += FORGETTING * (duration_s - self._fixed_s)
        if num_rows >= CHUNK_ROWS:
            self._row_s += SMOOTHING * ((duration_s - self._fixed_s) / num_rows - self._row_s)

    def wait_s(self, ready_s: float, num_ready: int, num_rows: int, return_times: Iterable[ReturnTime]) -> float:
        """Seconds from now that a wait would pay off at most, 0 for none.

        `ready_s`: since when the worker is free and has jobs; `num_ready`: how many; `num_rows`: of the step
        they would make.
        """
        if not self._waits or self._fixed_s is None:
            return 0.0
        lost_s = self._fixed_s + (self._row_s * num_rows if num_rows >= CHUNK_ROWS else 0.0)
        now_s = time.perf_counter()
        expected = sorted(at for return_time in return_times if (at := return_time.expected_s(now_s)) is not None)
        best_s = now_s
        for num_back, at_s in enumerate(expected, start=1):
            wait_s = at_s - ready_s
            if num_ready * wait_s < num_back * (lost_s - wait_s):
                best_s = at_s + LATENESS_S
        return best_s - now_s

    def peer_wait_s(self, ended_s: float) -> float:
        """Seconds from now that those whom the neighbour answered, in its turn until `ended_s`, are waited for."""
        if not self._waits or self._fixed_s is None:
            return 0.0
        return max(0.0, ended_s + PEER_WAIT * self._fixed_s - time.perf_counter())
