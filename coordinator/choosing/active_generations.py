"""The active generations of a coordinator, which share the target's forwards.

The more there are, the more a draft costs. While the target reads the prompt of one, all the others wait longer.
"""

import math
import time
from collections.abc import Callable


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
