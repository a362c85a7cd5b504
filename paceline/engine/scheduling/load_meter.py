"""How busy a model server is. Coordinators choose among several servers by it."""

import time
from collections.abc import Callable

# Length of the time over which `utilization` is taken.
WINDOW_S = 1.0


class LoadMeter:
    """Steps are counted on the device thread; the rest is for other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # Seconds of all steps, now and when the window began.
        self._computed_s = self._computed_before_s = 0.0
        self._began_s = clock()
        self._busy = 0.0

    def count_step(self, seconds: float) -> None:
        self._computed_s += seconds

    def utilization(self, running_s: float) -> float:
        """Returns the share of the last window that the model computed. `running_s`: seconds of the step in progress."""
        elapsed_s, computed_s = self._clock() - self._began_s, self._computed_s + running_s
        if elapsed_s >= WINDOW_S:
            self._busy = min(1.0, max(0.0, computed_s - self._computed_before_s) / elapsed_s)
            self._began_s, self._computed_before_s = self._clock(), computed_s
        return self._busy
