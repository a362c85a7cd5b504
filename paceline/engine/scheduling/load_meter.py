"""How busy a model server is, and how its forward passes compare to those measured at its start.

Coordinators choose among several servers by it.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

# Factor on the weight of older steps, for each new one; the weight that makes the comparison known; and for how long after a
# step: one that is slow now may be fast when it is used again.
MEMORY, KNOWN_STEPS, KNOWN_FOR_S = 0.98, 20.0, 5.0
# Length of the time over which `utilization` is taken.
WINDOW_S = 1.0


class LoadMeter:
    """Steps are counted on the device thread; the rest is for other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Tokens and seconds of forward passes, as measured at the start.
        self._sizes: Sequence[float] = ()
        self._seconds: Sequence[float] = ()
        # Of recent steps: their number, their seconds and those predicted; and when the last one ended.
        self._num_steps = self._step_s = self._predicted_s = 0.0
        self._last_s = 0.0
        self._slowdown = 0.0
        # Seconds of all steps, now and when the window began.
        self._computed_s = self._computed_before_s = 0.0
        self._began_s = clock()
        self._busy = 0.0

    def expect(self, forward_times: Sequence[tuple[int, float]]) -> None:
        """`forward_times`: (tokens, seconds), in order."""
        self._sizes, self._seconds = zip(*forward_times, strict=True) if forward_times else ((), ())

    def count_step(self, seconds: float, num_tokens: int) -> None:
        self._computed_s += seconds
        if not self._sizes or num_tokens > self._sizes[-1]:
            # A longer chunk than was measured.
            return
        self._last_s = self._clock()
        self._num_steps = MEMORY * self._num_steps + 1
        self._step_s = MEMORY * self._step_s + seconds
        self._predicted_s = MEMORY * self._predicted_s + float(np.interp(num_tokens, self._sizes, self._seconds))
        self._slowdown = self._step_s / self._predicted_s if self._num_steps > KNOWN_STEPS else 0.0

    @property
    def slowdown(self) -> float:
        """Returns the seconds of recent forward passes as a multiple of those predicted; 0 if there were too few."""
        return self._slowdown if self._clock() - self._last_s < KNOWN_FOR_S else 0.0

    def utilization(self, running_s: float) -> float:
        """Returns the share of the last window that the model computed. `running_s`: seconds of the step in progress."""
        elapsed_s, computed_s = self._clock() - self._began_s, self._computed_s + running_s
        if elapsed_s >= WINDOW_S:
            self._busy = min(1.0, max(0.0, computed_s - self._computed_before_s) / elapsed_s)
            self._began_s, self._computed_before_s = self._clock(), computed_s
        return self._busy
