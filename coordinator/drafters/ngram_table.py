"""Counts n-grams in a sliding window and predicts the longest known context's most frequent continuation."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from paceline.checks import require, require_type

MIN_ORDER, MAX_ORDER = 2, 8
# A table takes up to 3.5 kB per token.
MAX_WINDOW_TOKENS = 2**17
ORDERS_ALLOWED = f"distinct whole numbers in [{MIN_ORDER}, {MAX_ORDER}], separated by commas, such as 4,3,2"


@dataclass(frozen=True, slots=True)
class NgramShape:
    """The shape of an n-gram table. Raises InvalidArgument on construction.

    window_tokens: newest tokens counted, from the longest order to 2^17.
    orders: distinct lengths from 2 to 8, including the predicted token; kept longest first.
    """

    window_tokens: int = 4096
    orders: tuple[int, ...] = (4, 3, 2)

    def __post_init__(self) -> None:
        require_type(self, int, "a whole number", "window_tokens")
        is_fit = bool(self.orders) and len(set(self.orders)) == len(self.orders)
        is_fit = is_fit and all(type(order) is int and MIN_ORDER <= order <= MAX_ORDER for order in self.orders)
        require(is_fit, "orders", ",".join(map(str, self.orders)), ORDERS_ALLOWED)
        object.__setattr__(self, "orders", tuple(sorted(self.orders, reverse=True)))
        require(
            self.orders[0] <= self.window_tokens <= MAX_WINDOW_TOKENS,
            "window_tokens", self.window_tokens, f"in [{self.orders[0]} (the longest order), {MAX_WINDOW_TOKENS}]",
        )  # fmt: skip

    @property
    def context_lengths(self) -> tuple[int, ...]:
        return tuple(order - 1 for order in self.orders)

    @property
    def longest_match(self) -> int:
        return self.orders[0] - 1


DEFAULT_SHAPE = NgramShape()


def parse_orders(text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    # int() raises its own error for thousands of digits.
    require(all(part.isdecimal() and len(part) < 3 for part in parts), "orders", text, ORDERS_ALLOWED)
    return NgramShape(MAX_WINDOW_TOKENS, tuple(map(int, parts))).orders


@dataclass(frozen=True, slots=True)
class Prediction:
    token: int
    # How many tokens of context matched, and how often they were followed by this token.
    match_length: int
    times_seen: int


class NgramTable:
    def __init__(self, shape: NgramShape = DEFAULT_SHAPE) -> None:
        self._window = shape.window_tokens
        self._lengths, self._longest = shape.context_lengths, shape.longest_match
        self._tokens: deque[int] = deque()
        self._num_added = 0
        self._continuations: dict[tuple[int, ...], _Continuations] = {}

    def __len__(self) -> int:
        return len(self._continuations)

    def add(self, token: int) -> None:
        """Drops the oldest token if the window is full."""
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
        for length in self._lengths:
            if length <= len(tail) and (seen := self._continuations.get(tuple(tail[-length:]))) is not None:
                token, times_seen = seen.best()
                return Prediction(token, length, times_seen)
        return None

    def _forget_oldest(self) -> None:
        oldest = tuple(islice(self._tokens, self._longest + 1))
        for length in self._lengths:
            if length < len(oldest):
                seen = self._continuations[oldest[:length]]
                seen.forget_oldest(oldest[length])
                if not seen:
                    del self._continuations[oldest[:length]]
        self._tokens.popleft()


class _Continuations:
    """Tokens that followed one context."""

    __slots__ = ("_best", "_seen")

    def __init__(self) -> None:
        # Token -> count and last position, so no two values are equal.
        self._seen: dict[int, tuple[int, int]] = {}
        # None until `best` searches for it.
        self._best: int | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, token: int, position: int) -> None:
        times = self._seen[token][0] + 1 if token in self._seen else 1
        self._seen[token] = (times, position)
        # The most recent token wins a tie.
        if len(self._seen) == 1 or (self._best is not None and times >= self._seen[self._best][0]):
            self._best = token

    def forget_oldest(self, token: int) -> None:
        times, position = self._seen[token]
        if times > 1:
            self._seen[token] = (times - 1, position)
        else:
            del self._seen[token]
        if token == self._best:
            # Lazy: a frequent context may have thousands of continuations.
            self._best = None

    def best(self) -> tuple[int, int]:
        """Returns the most frequent token (on a tie, the most recent) and its count."""
        if self._best is None:
            self._best = max(self._seen, key=self._seen.__getitem__)
        return self._best, self._seen[self._best][0]
