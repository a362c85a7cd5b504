"""The generations that run now."""

import math
import time
from collections.abc import Callable


class ActiveGenerations:
    """The running generations, which share forwards. While the prompt of one is read, all others wait longer."""

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
