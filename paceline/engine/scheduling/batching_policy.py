"""The batching policy: when a free worker waits for a fuller batch.

A forward pass reads all weights, whether it has one token or twenty. Without waiting, sequences that start one step apart stay
one step apart, in two groups with a forward pass each. So a free worker with n jobs may wait a time w for m sequences that
should come back soon, if that shortens the sum of all waits:

    n w < m (F - w)     without the wait, those m sequences would wait F - w longer for the step in progress

F is the part of a step's time that does not grow with its tokens: the cost of a separate step for the m sequences. If the
step has a long prompt's chunk, F is the time of the whole step.

If two model servers share one device, the peer computes for exactly the sequences that are away, and waiting costs
nothing while it holds the compute lock. When its lease ends, the worker waits a fraction of F for the sequences that the
lease's record announces, so that one that is a step late joins the others again.
"""

import math
import time
from collections.abc import Iterable

from paceline.recent_mean import RecentMean

# Weight of the newest observation in a moving average.
SMOOTHING = 0.3
# How fast the fixed cost may grow, per step, towards longer steps (a slower clock, a fuller machine). Slowly, because
# under load every step is long, and its rows would be counted as fixed cost.
FORGETTING = 0.001
# A sequence that is away for longer than LATENESS times its usual time plus LATENESS_S is not waited for.
LATENESS = 1.5
LATENESS_S = 0.5e-3
# Longest wait for the sequences that the peer answered, as a multiple of the fixed cost.
PEER_WAIT = 0.5
# A step with this many rows or more is a chunk: all its jobs wait for the rows of one prompt.
CHUNK_TOKENS = 64


class ReturnTime:
    """How long a sequence is usually away, from an answer to its next job."""

    def __init__(self) -> None:
        self._left_s: float | None = None
        self._usual_s = RecentMean(SMOOTHING)
        # When it should come back, and from when on it is overdue: always, if it is not away or has no history.
        self.due_s = -math.inf
        self.overdue_s = -math.inf

    def leave(self, at_s: float) -> None:
        self._left_s = at_s
        if self._usual_s.num_seen:
            self.due_s = at_s + self._usual_s.value
            self.overdue_s = at_s + LATENESS * self._usual_s.value + LATENESS_S

    def arrive(self, at_s: float) -> None:
        if self._left_s is not None:
            self._usual_s.add(max(0.0, at_s - self._left_s))
        self.end()

    def end(self) -> None:
        """It is not away, or will not come back."""
        self._left_s, self.overdue_s = None, -math.inf


class BatchingPolicy:
    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._fixed_s: float | None = None
        # Seconds that each row of a chunk adds to a step.
        self._token_s = RecentMean(SMOOTHING)

    def count_step(self, duration_s: float, num_tokens: int) -> None:
        """Learns from a step: the shortest recent step is the fixed cost; a chunk gives the cost per token."""
        if self._fixed_s is None or duration_s < self._fixed_s:
            self._fixed_s = duration_s
        else:
            self._fixed_s += FORGETTING * (duration_s - self._fixed_s)
        if num_tokens >= CHUNK_TOKENS:
            self._token_s.add((duration_s - self._fixed_s) / num_tokens)

    def wait_s(self, ready_s: float, num_ready: int, num_tokens: int, return_times: Iterable[ReturnTime]) -> float:
        """Returns the longest wait that pays off, in seconds, or 0.

        `ready_s`: when the worker became free; `num_ready` jobs with `num_tokens` tokens are ready.
        """
        if not self._waits or self._fixed_s is None:
            return 0.0
        lost_s = self._fixed_s + (self._token_s.value * num_tokens if num_tokens >= CHUNK_TOKENS else 0.0)
        now_s = time.perf_counter()
        expected = sorted([each.due_s for each in return_times if now_s <= each.overdue_s])
        for num_back in range(len(expected), 0, -1):
            at_s = max(now_s, expected[num_back - 1])
            wait_s = at_s - ready_s
            if num_ready * wait_s < num_back * (lost_s - wait_s):
                return at_s + LATENESS_S - now_s
        return 0.0

    def peer_wait_s(self, ended_s: float) -> float:
        if not self._waits or self._fixed_s is None:
            return 0.0
        return max(0.0, ended_s + PEER_WAIT * self._fixed_s - time.perf_counter())
