"""Shares of a number of places by key."""

from collections import Counter
from collections.abc import Callable

# A key's weight by its name; None for all callers without one.
WeightOf = Callable[[str | None], float]


def same_weight(owner: str | None) -> float:
    return 1.0


class Shares:
    """Places for the callers of several keys.

    While places are free anyone may take them. Beyond, a key may as long as it has less than its share among those that have
    some: one that comes late finds its own though another has taken all. With k keys of one weight at most
    1 + 1/2 + ... + 1/k times as many places are taken as there are.
    """

    def __init__(self, num_places: int, weight_of: WeightOf = same_weight) -> None:
        self._num_places, self._weight_of = num_places, weight_of
        self._taken: Counter[str | None] = Counter()
        self.num_taken = 0

    def may_take(self, owner: str | None) -> bool:
        if self.num_taken < self._num_places:
            return True
        weights = sum(map(self._weight_of, self._taken.keys() | {owner}))
        return self._taken[owner] < self._num_places * self._weight_of(owner) / weights

    def take(self, owner: str | None) -> None:
        self._taken[owner] += 1
        self.num_taken += 1

    def give_back(self, owner: str | None) -> None:
        self._taken[owner] -= 1
        self.num_taken -= 1
        if not self._taken[owner]:
            del self._taken[owner]
