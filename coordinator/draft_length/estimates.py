"""What something costs, learned from times as they come: by a line, or by the token."""

import math

import numpy as np
from numpy.typing import NDArray

# Standard deviations in shares of an expected time: of one time, of what a, b and c change by from one to the next,
# and of the first guesses at b and c.
NOISE = 0.2
DRIFTS = np.array([0.03, 0.003, 0.003])
FIRST_UNCERTAINTY = 0.2
# A time is cut to so many of its standard deviations: that a replay or a catch-up was in it says nothing of the next
# round. A second surprise on the same side says that things have changed: it is taken whole, and a, b and c together
# may be so much more or less, in shares of themselves.
MOST_SURPRISE = 2.0
CHANGE = 0.5
# Nothing is hoped to take less of what was predicted.
LEAST_OPTIMISM = 0.2
# What was read still counts after something else was; and a time beyond so many times the expected one is cut.
READING_MEMORY = 0.98
READING_OUTLIER = 3.0


class LinearCost:
    """seconds = a, and b + c k more with drafts, where all three drift: a Kalman filter, in shares of the time expected.

    Loads change a; what drafts add to it changes slowly. So while k stays as it is, nothing is forgotten of b and c:
    only their uncertainty grows. b is what a batch loses when its sequences do not all come back at once.
    """

    def __init__(self, guessed_slope: float, free_start: bool) -> None:
        """Until different k were seen, c is `guessed_slope` of the time; or, with `free_start`, where there always
        are drafts, a and b are 0."""
        self._guessed_slope = guessed_slope
        self._free_start = free_start
        self._seconds = np.zeros(3)  # a, b, c
        # The same as they are asked for in every round: numpy would take longer to begin than to add.
        self._line: tuple[float, ...] = (0.0, 0.0, 0.0)
        self._covariance = np.zeros((3, 3))
        # Whether the last time was too short or too long by far: -1 or 1.
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
        """Seconds, > 0."""
        start, jump, slope = self._line
        return max(1e-6, start + (jump + slope * k if k > 0 else 0.0))

    def optimistic(self, k: float) -> float:
        """As predicted, less one standard deviation of the prediction: so a k that was not tried lately is."""
        features, predicted_s = _features(k), self.predict(k)
        variance = float(features @ self._covariance @ features)
        return max(LEAST_OPTIMISM * predicted_s, predicted_s - math.sqrt(max(0.0, variance)))

    def with_uncertainty(self, ratio: float) -> "LinearCost":
        """The same to begin with, under conditions that may be others; what drafts add, `ratio` times."""
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
        # Where there always are drafts, a and b can't be told apart.
        doubts = np.array([1.0, 0.0 if self._free_start else FIRST_UNCERTAINTY, FIRST_UNCERTAINTY])
        self._covariance = np.diag((doubts * seconds) ** 2)
        self.is_known = True


def _features(k: float) -> NDArray[np.float64]:
    return np.array([1.0, float(k > 0), k])


class ReadingCost:
    """seconds = c n for n context tokens that a drafter reads before it proposes, with fading memory."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, num_tokens: int, seconds: float) -> None:
        if self._tokens > 0:
            seconds = min(seconds, READING_OUTLIER * self.predict(num_tokens))
        self._tokens = self._tokens * READING_MEMORY + num_tokens
        self._seconds = self._seconds * READING_MEMORY + max(0.0, seconds)

    def predict(self, num_tokens: int) -> float:
        """Seconds; 0 until something was read."""
        return self._seconds / self._tokens * num_tokens if self._tokens > 0 else 0.0
