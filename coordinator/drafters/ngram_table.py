"""Counts n-grams in a sliding window and predicts the longest known context's most frequent continuation."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from paceline.checks import require, require_type

MIN_ORDER, MAX_ORDER = 2, 8
# A table takes up to 250 bytes per token and order.
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
        # By context. Most have one continuation, which an integer holds: an object takes several times as much.
        self._continuations: dict[int, int | _Continuations] = {}

    def __len__(self) -> int:
        return len(self._continuations)

    def add(self, token: int) -> None:
        """Drops the oldest token if the window is full."""
        if len(self._tokens) == self._window:
            self._forget_oldest()
        recent = tuple(islice(reversed(self._tokens), self._longest))[::-1]
        for length in self._lengths:
            if length <= len(recent):
                self._count(_key(recent[-length:]), token)
        self._tokens.append(token)
        self._num_added += 1

    def predict(self, tail: Sequence[int]) -> Prediction | None:
        for length in self._lengths:
            if length <= len(tail) and (seen := self._continuations.get(_key(tail[-length:]))) is not None:
                token, times_seen = _unpacked(seen)[:2] if isinstance(seen, int) else seen.best()
                return Prediction(token, length, times_seen)
        return None

    def _count(self, context: int, token: int) -> None:
        seen = self._continuations.get(context)
        if seen is None:
            self._continuations[context] = _packed(token, 1, self._num_added)
        elif isinstance(seen, int):
            known, times, position = _unpacked(seen)
            if known == token:
                self._continuations[context] = _packed(token, times + 1, self._num_added)
            else:
                self._continuations[context] = several = _Continuations(known, times, position)
                several.add(token, self._num_added)
        else:
            seen.add(token, self._num_added)

    def _forget_oldest(self) -> None:
        oldest = tuple(islice(self._tokens, self._longest + 1))
        for length in self._lengths:
            if length < len(oldest):
                self._forget(_key(oldest[:length]), oldest[length])
        self._tokens.popleft()

    def _forget(self, context: int, token: int) -> None:
        seen = self._continuations[context]
        if isinstance(seen, int):
            _, times, position = _unpacked(seen)
            if times > 1:
                self._continuations[context] = _packed(token, times - 1, position)
            else:
                del self._continuations[context]
            return
        seen.forget_oldest(token)
        if len(seen) == 1:
            self._continuations[context] = _packed(*seen.last())


def _key(context: Sequence[int]) -> int:
    """Returns a number for each context of any length."""
    key = 1
    for token in context:
        key = key << 32 | token
    return key


def _packed(token: int, times: int, position: int) -> int:
    return position << 64 | times << 32 | token


def _unpacked(seen: int) -> tuple[int, int, int]:
    """Returns the token, its count and its last position."""
    return seen & 0xFFFF_FFFF, seen >> 32 & 0xFFFF_FFFF, seen >> 64


class _Continuations:
    """Tokens that followed one context: two or more."""

    __slots__ = ("_best", "_seen")

    def __init__(self, token: int, times: int, position: int) -> None:
        # Token -> count and last position, so no two values are equal.
        self._seen = {token: (times, position)}
        # None until `best` searches for it.
        self._best: int | None = token

    def __len__(self) -> int:
        return len(self._seen)

    def last(self) -> tuple[int, int, int]:
        """Returns the only token that is left, its count and its last position."""
        [(token, (times, position))] = self._seen.items()
        return token, times, position

    def add(self, token: int, position: int) -> None:
        times = self._seen[token][0] + 1 if token in self._seen else 1
        self._seen[token] = (times, position)
        # The most recent token wins a tie.
        if self._best is not None and times >= self._seen[self._best][0]:
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
