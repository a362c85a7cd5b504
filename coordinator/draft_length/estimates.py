"""Estimates of costs from measured times: a line in k, or a cost per token."""

import math

import numpy as np
from numpy.typing import NDArray

# Standard deviations as fractions of the expected time: of one measurement; of the change of a, b and c from one
# measurement to the next; of the first guesses of b and c.
NOISE = 0.2
DRIFTS = np.array([0.03, 0.003, 0.003])
FIRST_UNCERTAINTY = 0.2
# A time is limited to this many standard deviations from the expected time: a replay or a longer tail may be in it,
# which says nothing about the next round.
MOST_SURPRISE = 2.0
# A second surprise on the same side means that the costs have changed. Then the time is used without a limit, and the
# standard deviation of a, b and c together grows by this fraction of them.
CHANGE = 0.5
# An optimistic time is at least this fraction of the predicted time.
LEAST_OPTIMISM = 0.2
# Factor on the weight of older measurements, for each new one.
READING_MEMORY = 0.98
# A reading time is limited to this multiple of the expected time.
READING_OUTLIER = 3.0


class LinearCost:
    """seconds = a for k = 0, and a + b + c k for k > 0, learned by a Kalman filter, because a, b and c change slowly.

    a changes with the load; b and c change more slowly. While k stays the same, the filter keeps its estimates of b and
    c, and only their uncertainty grows. b is the time that a batch loses because its sequences do not all come back at
    once.
    """

    def __init__(self, guessed_slope: float, free_start: bool) -> None:
        """Until the filter has seen different k, c is `guessed_slope` times the first time.

        With `free_start` there are always drafts, and a and b begin at 0 instead.
        """
        self._guessed_slope = guessed_slope
        self._free_start = free_start
        self._seconds = np.zeros(3)  # a, b, c
        # a, b and c as floats: `predict` runs in every round, and numpy calls would take longer than its arithmetic.
        self._line: tuple[float, ...] = (0.0, 0.0, 0.0)
        self._covariance = np.zeros((3, 3))
        # Whether the last time was much too short (-1) or much too long (1), otherwise 0.
        self._surprise = 0
        self.is_known = False

    def learn(self, k: float, seconds: float) -> None:
        if not self.is_known:
            self._begin(k, seconds)
            return
        features, expected_s = _features(k), self.predict(k)
        deviation_s = MOST_SURPRISE * NOISE * expected_s
        likely_s = min(max(seconds, expected_s - deviation_s), expected_s + deviation_s)
        before, self._surprise = self._surprise, int(np.sign(seconds - likely_s))
        if self._surprise != 0 and self._surprise == before:
            self._covariance += np.outer(self._seconds, self._seconds) * CHANGE**2
        else:
            seconds = likely_s
        self._covariance += np.diag((DRIFTS * expected_s) ** 2)
        shared = self._covariance @ features
        variance = features @ shared + (NOISE * expected_s) ** 2
        self._seconds += shared * (seconds - features @ self._seconds) / variance
        self._seconds[1:] = self._seconds[1:].clip(min=0)
        self._line = tuple(self._seconds.tolist())
        self._covariance -= np.outer(shared, shared) / variance

    def predict(self, k: float) -> float:
        """Expected seconds for k, > 0."""
        start, jump, slope = self._line
        return max(1e-6, start + (jump + slope * k if k > 0 else 0.0))

    def optimistic(self, k: float) -> float:
        """Expected seconds less one standard deviation of the estimate, so that a k without recent times gets tried."""
        features, predicted_s = _features(k), self.predict(k)
        variance = float(features @ self._covariance @ features)
        return max(LEAST_OPTIMISM * predicted_s, predicted_s - math.sqrt(max(0.0, variance)))

    def with_uncertainty(self, ratio: float) -> "LinearCost":
        """A copy for other conditions, with the uncertainty of a first guess, and b and c multiplied by `ratio`."""
        other = LinearCost(self._guessed_slope, self._free_start)
        if self.is_known:
            other._begin_uncertain(self._seconds * [1.0, ratio, ratio], self.predict(1))
        return other

    def _begin(self, k: float, seconds: float) -> None:
        slope_s = seconds / max(1.0, k) if self._free_start else self._guessed_slope * seconds
        self._begin_uncertain(np.array([seconds - slope_s * k, 0.0, slope_s]), seconds)

    def _begin_uncertain(self, estimates: NDArray[np.float64], seconds: float) -> None:
        self._seconds = estimates
        self._line = tuple(estimates.tolist())
        # If there are always drafts, measurements can't separate a from b.
        doubts = np.array([1.0, 0.0 if self._free_start else FIRST_UNCERTAINTY, FIRST_UNCERTAINTY])
        self._covariance = np.diag((doubts * seconds) ** 2)
        self.is_known = True


def _features(k: float) -> NDArray[np.float64]:
    return np.array([1.0, float(k > 0), k])


class ReadingCost:
    """seconds = c n for n context tokens that a drafter reads before it proposes. Older measurements count less."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, num_tokens: int, seconds: float) -> None:
        if self._tokens > 0:
            seconds = min(seconds, READING_OUTLIER * self.predict(num_tokens))
        self._tokens = self._tokens * READING_MEMORY + num_tokens
        self._seconds = self._seconds * READING_MEMORY + max(0.0, seconds)

    def predict(self, num_tokens: int) -> float:
        """Expected seconds; 0 before the first measurement."""
        return self._seconds / self._tokens * num_tokens if self._tokens > 0 else 0.0
