"""How long forward passes take, as the work shows.

What was measured at the start may be wrong: other programs ran beside it, or do now. Each step moves the times of its own size,
and with them those of sizes that were not worked with lately: a processor that has become slower is so for all of them.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

# Exponent of an observation's ratio to the prediction.
RECENT = 0.05
# The first step counts as so many later ones, the second as half as many, and so on: little is known at the start.
FIRST_WEIGHT = 10.0
# A step counts as at most this multiple of the prediction, and at least as its inverse: a pause says nothing of the next step.
MAX_SURPRISE = 2.0
# Factor on the number of a size's older steps, for each new one; and the number at which a size hardly follows others.
MEMORY, FEW_STEPS = 0.99, 5.0
# The number of steps that makes a recent comparison, and for how long after a step it is recent: what is slow now may be fast
# when it is used again.
KNOWN_STEPS, KNOWN_FOR_S = 20, 5.0


class LearnedTimes:
    """It begins and counts steps on the device thread; the properties are for other threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sizes = np.empty(0)
        # Of each size: seconds, and recent steps.
        self._times = np.empty((2, 0))
        self._num_steps, self._last_s = 0, 0.0

    def begin(self, measured: Sequence[tuple[int, float]]) -> None:
        """Begins with (tokens, seconds) that were measured, in order."""
        self._sizes, seconds = np.array(measured, float).reshape(-1, 2).T
        self._times = np.array([seconds, np.zeros(len(seconds))])

    def count_step(self, seconds: float, num_tokens: int) -> None:
        """Learns from a step: one forward pass without a long prompt."""
        if not self._sizes.size:
            return
        self._num_steps, self._last_s = self._num_steps + 1, self._clock()
        known_s, num_worked = self._times
        # Between two sizes, as a fraction of their distance.
        places = np.arange(self._sizes.size)
        nearness = np.maximum(0.0, 1 - abs(places - np.interp(num_tokens, self._sizes, places)))
        ratio = min(MAX_SURPRISE, max(1 / MAX_SURPRISE, seconds / self._predicted_s(num_tokens)))
        following = nearness + (1 - nearness) * FEW_STEPS / (FEW_STEPS + num_worked)
        weight = max(1.0, FIRST_WEIGHT / self._num_steps)
        self._times = np.array([known_s * ratio ** (weight * RECENT * following), MEMORY * num_worked + nearness])

    def _predicted_s(self, num_tokens: int) -> float:
        """Predicts linearly between the sizes and after the last two, as the coordinator does."""
        seconds = self._times[0]
        predicted_s = float(np.interp(num_tokens, self._sizes, seconds))
        if num_tokens > self._sizes[-1] and self._sizes.size > 1:
            slope = (seconds[-1] - seconds[-2]) / (self._sizes[-1] - self._sizes[-2])
            predicted_s += max(0.0, slope) * (num_tokens - self._sizes[-1])
        return predicted_s

    @property
    def points(self) -> list[tuple[int, float]]:
        """Returns (tokens, seconds) by increasing numbers of tokens; seconds never fall. Empty if nothing was measured."""
        # Sizes whose times fall get their mean, to which those that were worked with contribute most.
        parts: list[tuple[float, float, int]] = []
        for seconds, num_worked in self._times.T.tolist():
            part = seconds, num_worked + 1e-3, 1
            while parts and parts[-1][0] > part[0]:
                before = parts.pop()
                weight = before[1] + part[1]
                part = (before[0] * before[1] + part[0] * part[1]) / weight, weight, before[2] + part[2]
            parts.append(part)
        rising = [seconds for seconds, _, num_sizes in parts for _ in range(num_sizes)]
        return [(int(size), seconds) for size, seconds in zip(self._sizes, rising, strict=True)]

    @property
    def is_recent(self) -> bool:
        """Whether recent steps show how fast the model is now."""
        return self._num_steps >= KNOWN_STEPS and self._clock() - self._last_s < KNOWN_FOR_S
