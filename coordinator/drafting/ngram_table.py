"""Counts of n-grams within a window of tokens, and what they predict.

The longest context that was seen before decides: its most frequent continuation is predicted, or of equally frequent
ones the most recent.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from coordinator.ngram_shape import DEFAULT_SHAPE, NgramShape


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted token. It followed the last `match_length` tokens `times_seen` times."""

    token: int
    match_length: int
    times_seen: int


class NgramTable:
    """Counts of the n-grams of the shape's orders within its window."""

    def __init__(self, shape: NgramShape = DEFAULT_SHAPE) -> None:
        self._window = shape.window_tokens
        self._lengths, self._longest = shape.context_lengths, shape.longest_match
        self._tokens: deque[int] = deque()
        self._num_added = 0
        self._continuations: dict[tuple[int, ...], _Continuations] = {}

    def __len__(self) -> int:
        """Number of contexts: fewer than the orders for each token of the window."""
        return len(self._continuations)

    def add(self, token: int) -> None:
        """Adds the next token. If the window is full, drops the oldest."""
        if len(self._tokens) == self._window:
            self._forget_oldest()
        recent = tuple(islice(reversed(self._tokens), self._longest))[::-1]
        for length in self._lengths:
            if length <= len(recent):
                context = recent[-length:]
                if context not in self._continuations:
                    self._continuations[context] = _Continuations()
                self._continuations[context].add(token, self._num_added)
        self._tokens.append(token)
        self._num_added += 1

    def predict(self, tail: Sequence[int]) -> Prediction | None:
        """Predicts the token after `tail`, from the longest end of `tail` that was seen before; None if none was."""
        for length in self._lengths:
            if length <= len(tail) and (seen := self._continuations.get(tuple(tail[-length:]))) is not None:
                token, times_seen = seen.best()
                return Prediction(token, length, times_seen)
        return None

    def _forget_oldest(self) -> None:
        """Drops the oldest token and the n-grams that begin with it."""
        oldest = tuple(islice(self._tokens, self._longest + 1))
        for length in self._lengths:
            if length < len(oldest):
                seen = self._continuations[oldest[:length]]
                seen.forget_oldest(oldest[length])
                if not seen:
                    del self._continuations[oldest[:length]]
        self._tokens.popleft()


class _Continuations:
    """The tokens that followed one context, and the best of them."""

    __slots__ = ("_best", "_seen")

    def __init__(self) -> None:
        # Token -> how often it was seen, and its last position. Positions differ, so no two values are equal.
        self._seen: dict[int, tuple[int, int]] = {}
        # None: `best` must search for it.
        self._best: int | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, token: int, position: int) -> None:
        times = self._seen[token][0] + 1 if token in self._seen else 1
        self._seen[token] = (times, position)
        # This token is the most recent, so it wins a tie.
        if len(self._seen) == 1 or (self._best is not None and times >= self._seen[self._best][0]):
            self._best = token

    def forget_oldest(self, token: int) -> None:
        """Removes the token's oldest occurrence. Its last position stays."""
        times, position = self._seen[token]
        if times > 1:
            self._seen[token] = (times - 1, position)
        else:
            del self._seen[token]
        if token == self._best:
            # Search only when `best` is called: a context of one frequent token may have thousands of continuations.
            self._best = None

    def best(self) -> tuple[int, int]:
        """The most frequent token, ties to the most recent, and how often it was seen."""
        if self._best is None:
            self._best = max(self._seen, key=self._seen.__getitem__)
        return self._best, self._seen[self._best][0]
