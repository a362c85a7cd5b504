"""A measured time that is a line in a number: a recent mean, and a slope from steps between neighbouring measurements.

Neighbours differ in the number and in noise. The level, which moves with the machine's load, is the same for both: so a
change of load does not bend the slope.
"""

import math

# Weight of a new measurement in the recent means.
RECENT = 0.1
# The same for a second surprise in a row on the same side: it is a change.
CHANGE = 0.5
# The slope remembers steps whose squares sum to this: older steps count less only as there are new ones.
SPAN = 200.0
# The guessed slope counts as steps whose squares sum to this.
GUESS = 4.0
# A time differs from what was expected by this fraction of it at most, and the difference of two neighbours, once the
# slope is known, by this fraction of the mean time: a pause of the machine may be in them, or a change of its load.
MOST_SURPRISE, MOST_SURPRISE_OF_STEP = 0.5, 0.25


class Line:
    """seconds = mean + slope * (number - mean number)."""

    def __init__(self, guessed_slope: float) -> None:
        """`guessed_slope`: a step of the number, as a fraction of the first time over its number."""
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
        """Seconds for one more: never below 0, and never so many that nothing is left for the number 0."""
        most = self._seconds / self._number if self._number > 0 else math.inf
        return min(max(0.0, self._products / self._squares), most)

    def __call__(self, number: float) -> float:
        """Expected seconds, above 0 once known; 0 before any measurement."""
        return max(self._seconds / 100, self._seconds + self.slope * (number - self._number))

    def learn(self, number: float, seconds: float, tells_slope: bool = True) -> None:
        """`tells_slope`: False where the time depends on other things more than on the number."""
        if not self.is_known:
            self._number, self._seconds = self._last = number, seconds
            self._products = GUESS * self._guessed_slope * seconds / max(1.0, number)
            self.is_known = True
            return
        expected = self(number)
        likely = _limited(seconds, expected, MOST_SURPRISE * expected)
        before, self._surprise = self._surprise, (seconds > likely) - (seconds < likely)
        is_change = self._surprise != 0 and self._surprise == before
        recent = CHANGE if is_change else RECENT
        seconds = seconds if is_change else likely
        step = number - self._last[0]
        later = seconds - self._last[1]
        if self._squares > SPAN / 2:
            later = _limited(later, self.slope * step, MOST_SURPRISE_OF_STEP * self._seconds)
        if tells_slope:
            keep = SPAN / (SPAN + step * step)
            self._squares = keep * self._squares + step * step
            self._products = keep * self._products + step * later
        self._last = number, seconds
        self._number += recent * (number - self._number)
        before_s, self._seconds = self._seconds, self._seconds + recent * (seconds - self._seconds)
        if is_change:
            # Another load, another machine's speed: the slope changes with it.
            self._products *= self._seconds / before_s

    def guess(self, ratio: float) -> "Line":
        """A first estimate for other conditions, with a slope `ratio` times as large."""
        other = Line(self._guessed_slope)
        other.__dict__.update(self.__dict__)
        other._squares, other._products = GUESS, GUESS * self.slope * ratio
        return other


def _limited(value: float, expected: float, most: float) -> float:
    """`value`, but at most `most` away from what was expected."""
    return min(max(value, expected - most), expected + most)


# Factor on the weight of older rounds, for each new one.
MEMORY = 0.95
# What is known before counts as this many rounds without drafts.
BEFORE = 8.0


class Pace:
    """Tokens in the time of a plain round, at least 1: what a plain round's time is worth."""

    def __init__(self, before: "Pace | None" = None) -> None:
        self._before = before
        # Tokens, and time in plain rounds.
        self._tokens = self._rounds = 0.0

    @property
    def tokens(self) -> float:
        before = 1.0 if self._before is None else self._before.tokens
        return max(1.0, (BEFORE * before + self._tokens) / (BEFORE + self._rounds))

    def learn(self, num_tokens: int, plain_rounds: float) -> None:
        self._tokens = MEMORY * self._tokens + num_tokens
        self._rounds = MEMORY * self._rounds + plain_rounds
