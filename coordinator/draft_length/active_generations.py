"""Who shares the target's forwards: the more they are, the more a draft costs, and a prompt read among them delays all."""

import math
import time
from collections.abc import Callable


class ActiveGenerations:
    """All generations that a coordinator runs."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running: set[object] = set()
        # Those whose prompt is not read yet, and when the last one was.
        self._reading: set[object] = set()
        self._read_s = -math.inf

    @property
    def size(self) -> int:
        """At least 1: who asks is one of them."""
        return max(1, len(self._running))

    def join(self, generation: object) -> None:
        """It begins to read its prompt."""
        self._running.add(generation)
        self._reading.add(generation)

    def has_read(self, generation: object) -> None:
        """Its prompt; further calls change nothing."""
        if generation in self._reading:
            self._reading.remove(generation)
            self._read_s = self._clock()

    def leave(self, generation: object) -> None:
        self.has_read(generation)
        self._running.discard(generation)

    def was_reading_since(self, then_s: float) -> bool:
        """Whether any prompt was read later than that, in seconds of the clock."""
        return bool(self._reading) or self._read_s > then_s
