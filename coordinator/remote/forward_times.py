"""A server's forward times, as its model card tells them."""

from bisect import bisect_left
from collections.abc import Sequence


class ForwardTimes:
    """Seconds of a forward by its number of tokens: linear between the measured sizes and after the last."""

    def __init__(self, points: Sequence[tuple[int, float]] = ()) -> None:
        """`points`: (tokens, seconds), in order. Without two, every forward takes a millisecond, before any correction."""
        self._points = list(points) if len(points) > 1 else [(0, 1e-3), (1, 1e-3)]

    def __call__(self, num_tokens: float) -> float:
        right = min(max(1, bisect_left(self._points, (num_tokens, 0.0))), len(self._points) - 1)
        (size, seconds), (next_size, next_seconds) = self._points[right - 1 : right + 1]
        slope = (next_seconds - seconds) / (next_size - size)
        return seconds + slope * max(0.0, num_tokens - size)


UNKNOWN_TIMES = ForwardTimes()
