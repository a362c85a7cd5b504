"""How often something happens, by the kind of case."""

from collections.abc import Callable, Hashable


class Rates:
    """A share for each kind of case. Recent cases count more."""

    def __init__(self, before: Callable[[Hashable], float], before_weight: float, memory: float) -> None:
        """`before`: the share before any case, which counts as `before_weight` cases.

        `memory`: factor on the weight of older cases of the same kind, for each new one.
        """
        self._before = before
        self._before_weight = before_weight
        self._memory = memory
        # Kind -> weight of its cases, and of those in which it happened.
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def __getitem__(self, kind: Hashable) -> float:
        cases, happened = self._seen.get(kind, (0.0, 0.0))
        return (self._before_weight * self._before(kind) + happened) / (self._before_weight + cases)

    def learn(self, kind: Hashable, has_happened: bool) -> None:
        cases, happened = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = self._memory * cases + 1, self._memory * happened + has_happened
