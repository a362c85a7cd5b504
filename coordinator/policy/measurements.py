"""Measurements: a time as a line in a number, and how much faster than plain decoding a generation is.

The line's slope is learned from steps between neighbouring measurements. Neighbours differ in the number and in noise, while
the machine's load is the same for both, so a change of load does not bend the slope.
"""

import math

# Weight of a new measurement in the recent means, ...
RECENT = 0.1
# ... and of the second surprise in a row on the same side, which is a change.
CHANGE = 0.5
# Sum of the squares of the steps that the slope remembers.
SPAN = 200.0
# Weight of the guessed slope, as such a sum.
GUESS = 4.0
# A time is limited to this fraction above and below the expected time. Once the slope is known, the difference between
# neighbours is limited likewise, in fractions of the mean time. Both guard against pauses and changes of load.
MAX_SURPRISE, MAX_SURPRISE_OF_STEP = 0.5, 0.25
# Factor on the weight of older rounds, for each new one; and weight of the prior in plain rounds.
SPEEDUP_MEMORY, SPEEDUP_PRIOR = 0.95, 8.0


class Line:
    """seconds = mean + slope * (number - mean number)."""

    def __init__(self, guessed_slope: float) -> None:
        """`guessed_slope`: slope in fractions of the first time over its number."""
        self._guessed_slope = guessed_slope
        self._number = self._seconds = 0.0
        # The last measurement.
        self._last = 0.0, 0.0
        # Sums over steps: of their squares, and of their products with the difference in seconds.
        self._squares, self._products = GUESS, 0.0
        # Whether the last time was much too short (-1) or much too long (1), otherwise 0.
        self._surprise = 0
        self.is_known = False

    @property
    def slope(self) -> float:
        """Returns the seconds for one more: at least 0, and at most such that the time at the number 0 is not negative."""
        most = self._seconds / self._number if self._number > 0 else math.inf
        return min(max(0.0, self._products / self._squares), most)

    def __call__(self, number: float) -> float:
        """Returns the expected seconds, above 0 once known; 0 before any measurement."""
        return max(self._seconds / 100, self._seconds + self.slope * (number - self._number))

    def learn(self, number: float, seconds: float, tells_slope: bool = True) -> None:
        """`tells_slope`: False if the time depends on other things more than on the number."""
        if not self.is_known:
            self._number, self._seconds = self._last = number, seconds
            self._products = GUESS * self._guessed_slope * seconds / max(1.0, number)
            self.is_known = True
            return
        expected = self(number)
        likely = _limited(seconds, expected, MAX_SURPRISE * expected)
        before, self._surprise = self._surprise, (seconds > likely) - (seconds < likely)
        is_change = self._surprise != 0 and self._surprise == before
        recent = CHANGE if is_change else RECENT
        seconds = seconds if is_change else likely
        step = number - self._last[0]
        later = seconds - self._last[1]
        if self._squares > SPAN / 2:
            later = _limited(later, self.slope * step, MAX_SURPRISE_OF_STEP * self._seconds)
        if tells_slope:
            keep = SPAN / (SPAN + step * step)
            self._squares = keep * self._squares + step * step
            self._products = keep * self._products + step * later
        self._last = number, seconds
        self._number += recent * (number - self._number)
        before_s, self._seconds = self._seconds, self._seconds + recent * (seconds - self._seconds)
        if is_change:
            # The slope changes with the load.
            self._products *= self._seconds / before_s

    def guess(self, ratio: float) -> "Line":
        """Estimates the line under other conditions, with a slope `ratio` times as large."""
        other = Line(self._guessed_slope)
        other.__dict__.update(self.__dict__)
        other._squares, other._products = GUESS, GUESS * self.slope * ratio
        return other


def _limited(value: float, expected: float, most: float) -> float:
    return min(max(value, expected - most), expected + most)


class Speedup:
    """Tokens in the time of a plain round, at least 1."""

    def __init__(self, prior: "Speedup | None" = None) -> None:
        self._prior = prior
        # Tokens, and time in plain rounds.
        self._tokens = self._rounds = 0.0

    @property
    def tokens(self) -> float:
        prior = 1.0 if self._prior is None else self._prior.tokens
        return max(1.0, (SPEEDUP_PRIOR * prior + self._tokens) / (SPEEDUP_PRIOR + self._rounds))

    def learn(self, num_tokens: int, plain_rounds: float) -> None:
        self._tokens = SPEEDUP_MEMORY * self._tokens + num_tokens
        self._rounds = SPEEDUP_MEMORY * self._rounds + plain_rounds
