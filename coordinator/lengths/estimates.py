"""What something costs, learned from times as they come: by a line, or by the token."""

import math

# Standard deviations in shares of an expected time: of one time, of what a and b change by from one to the next,
# and of the first guess at b.
NOISE = 0.2
START_DRIFT = 0.03
SLOPE_DRIFT = 0.003
FIRST_SLOPE_DOUBT = 0.2
# A time is cut to so many of its standard deviations: that others' prompts, a replay or a catch-up were in it says
# nothing of the next round.
MOST_SURPRISE = 2.0
# Nothing is hoped to take less of what was predicted.
LEAST_HOPE = 0.2
# What was read still counts after something else was; and a time beyond so many times the expected one is cut.
READING_MEMORY = 0.98
READING_OUTLIER = 3.0


class LinearCost:
    """seconds = a + b k, where both drift: a Kalman filter, all deviations in shares of the time expected.

    While k stays as it is nothing is learned of b, and nothing forgotten: only its uncertainty grows.
    """

    def __init__(self, guessed_slope: float, free_start: bool) -> None:
        """Until different k were seen, b is `guessed_slope` of the time; or, with `free_start`, a is 0."""
        self._guessed_slope = guessed_slope
        self._free_start = free_start
        self._start_s = 0.0
        self._slope_s = 0.0
        # Covariance of the two, in squared seconds.
        self._var_start = 0.0
        self._var_slope = 0.0
        self._cov = 0.0
        self.is_known = False

    def learn(self, k: float, seconds: float) -> None:
        if not self.is_known:
            self._begin(k, seconds)
            return
        expected_s = self.predict(k)
        deviation_s = MOST_SURPRISE * NOISE * expected_s
        seconds = min(max(seconds, expected_s - deviation_s), expected_s + deviation_s)
        self._var_start += (START_DRIFT * expected_s) ** 2
        self._var_slope += (SLOPE_DRIFT * expected_s) ** 2
        to_start, to_slope = self._var_start + self._cov * k, self._cov + self._var_slope * k
        variance = to_start + to_slope * k + (NOISE * expected_s) ** 2
        surprise = (seconds - self._start_s - self._slope_s * k) / variance
        self._start_s += to_start * surprise
        self._slope_s = max(0.0, self._slope_s + to_slope * surprise)
        self._var_start -= to_start * to_start / variance
        self._var_slope -= to_slope * to_slope / variance
        self._cov -= to_start * to_slope / variance

    def predict(self, k: float) -> float:
        """Seconds, > 0."""
        return max(1e-6, self._start_s + self._slope_s * k)

    def hope(self, k: float) -> float:
        """As predicted, less one standard deviation of the prediction: so a k that was not tried lately is."""
        variance = self._var_start + 2 * self._cov * k + self._var_slope * k * k
        predicted_s = self.predict(k)
        return max(LEAST_HOPE * predicted_s, predicted_s - math.sqrt(max(0.0, variance)))

    def _begin(self, k: float, seconds: float) -> None:
        self._slope_s = seconds / max(1.0, k) if self._free_start else self._guessed_slope * seconds
        self._start_s = seconds - self._slope_s * k
        self._var_start, self._var_slope = seconds * seconds, (FIRST_SLOPE_DOUBT * seconds) ** 2
        self.is_known = True


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
