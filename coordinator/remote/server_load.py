"""What a server says of itself: how long its forward passes take, and how it is doing."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


class ForwardTimes:
    """Seconds of a forward pass by its number of tokens: linear between the measured sizes and after the last."""

    def __init__(self, points: Sequence[tuple[int, float]] = ()) -> None:
        """`points`: (tokens, seconds), in order. Without two, every forward pass takes a millisecond, before any correction."""
        self.is_measured = len(points) > 1
        if not self.is_measured:
            points = [(0, 1e-3), (1, 1e-3)]
        # Prepared, for a round's plan asks dozens of times: where each part but the first begins, and of each part its
        # beginning, seconds there, and slope.
        self._sizes = [size for size, _ in points[1:-1]]
        self._parts = [
            (size, seconds, (next_seconds - seconds) / (next_size - size))
            for (size, seconds), (next_size, next_seconds) in pairwise(points)
        ]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ForwardTimes) and self._parts == other._parts

    def __call__(self, num_tokens: float) -> float:
        size, seconds, slope = self._parts[bisect_left(self._sizes, num_tokens)]
        return seconds + slope * (num_tokens - size) if num_tokens > size else seconds


UNKNOWN_TIMES = ForwardTimes()


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """How a server is doing, as it last said."""

    # Other clients that have generations there, their generations, and the tokens of its cache that these may come to hold.
    num_others: int = 0
    num_other_generations: int = 0
    num_other_tokens: int = 0
    num_free_blocks: int = 0
    # Share of the last second in which its model computed.
    utilization: float = 0.0
    # Recent seconds of a forward pass of one token; 0 while unknown.
    token_s: float = 0.0
    # It was told to end: it keeps its generations for a while.
    is_draining: bool = False
