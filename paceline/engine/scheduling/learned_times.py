"""How long forward passes take, as the work shows.

What was measured at the start may be wrong: other programs ran beside it, or do now. Each step moves the times of its
own size, and half as fast those of all sizes: a processor that has become slower is so for all of them.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

# Exponents of an observation's ratio to the prediction: for the sizes next to it, and for all sizes.
RECENT, SHARED = 0.04, 0.02
# The first step counts as so many later ones, the second as half as many, and so on: little is known at the start.
FIRST_WEIGHT = 10.0
# An observation counts as at most this multiple of the prediction, or this part: a pause says nothing of the next step.
MAX_SURPRISE = 2.0
# The number of steps that makes a recent comparison, and for how long after a step it is recent: what is slow now may be fast
# when it is used again.
KNOWN_STEPS, KNOWN_FOR_S = 20, 5.0


class LearnedTimes:
    """It begins and counts steps on the device thread; the properties are for other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sizes = np.empty(0)
        self._seconds = np.empty(0)
        self._num_steps, self._last_s = 0, 0.0

    def begin(self, measured: Sequence[tuple[int, float]]) -> None:
        """Begins with (tokens, seconds) that were measured, in order."""
        self._sizes, self._seconds = np.array(measured, float).reshape(-1, 2).T

    def count_step(self, seconds: float, num_tokens: int) -> None:
        """Learns from a step: one forward pass that sampled at all of its tokens."""
        if not self._sizes.size or num_tokens > self._sizes[-1]:
            # Nothing is known of so many.
            return
        self._num_steps, self._last_s = self._num_steps + 1, self._clock()
        # Between two sizes, as a fraction of their distance.
        place = np.interp(num_tokens, self._sizes, np.arange(self._sizes.size))
        nearness = np.maximum(0.0, 1 - abs(np.arange(self._sizes.size) - place))
        ratio = seconds / float(np.interp(num_tokens, self._sizes, self._seconds))
        ratio = min(MAX_SURPRISE, max(1 / MAX_SURPRISE, ratio))
        weight = max(1.0, FIRST_WEIGHT / self._num_steps)
        self._seconds = self._seconds * ratio ** (weight * (SHARED + RECENT * nearness))

    @property
    def points(self) -> list[tuple[int, float]]:
        """Returns (tokens, seconds) by increasing numbers of tokens; seconds never fall. Empty if nothing was measured."""
        # Between the least that never fall and are above, and the most that are below.
        above = np.maximum.accumulate(self._seconds)
        below = np.minimum.accumulate(self._seconds[::-1])[::-1]
        return [(int(size), float(each)) for size, each in zip(self._sizes, np.sqrt(above * below), strict=True)]

    @property
    def is_recent(self) -> bool:
        """Whether recent steps show how fast the model is now."""
        return self._num_steps >= KNOWN_STEPS and self._clock() - self._last_s < KNOWN_FOR_S
