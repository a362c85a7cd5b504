from collections.abc import Callable, Hashable

# Of a new case: beyond it all are divided by it.
MAX_CASE_WEIGHT = 100.0


class Rates:
    """Success rates by kind; recent cases count more."""

    def __init__(
        self,
        prior: Callable[[Hashable], float],
        prior_weight: float,
        decay: float,
        parent: "Rates | None" = None,
    ) -> None:
        """`parent` learns every case too."""
        self._prior = prior
        # In cases.
        self.prior_weight = prior_weight
        # Per new case.
        self._decay = decay
        self._parent = parent
        # Kind -> weights of its cases and successes, where a new case weighs `_weight`.
        self._seen: dict[Hashable, tuple[float, float]] = {}
        # It grows when the others are forgotten, which takes no pass over them.
        self._weight = 1.0

    def __getitem__(self, kind: Hashable) -> float:
        seen = self._seen.get(kind)
        if seen is None:
            return self._prior(kind)
        cases, successes = seen
        weight = self.prior_weight * self._weight
        return (weight * self._prior(kind) + successes) / (weight + cases)

    def learn(self, kind: Hashable, is_success: bool) -> None:
        cases, successes = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = self._decay * cases + self._weight, self._decay * successes + self._weight * is_success
        if self._parent is not None:
            self._parent.learn(kind, is_success)

    def forget(self, factor: float) -> None:
        """Multiplies the weight of all cases by `factor`; `parent` keeps them."""
        self._weight /= factor
        if self._weight > MAX_CASE_WEIGHT:
            self._seen = {
                kind: (cases / self._weight, right / self._weight) for kind, (cases, right) in self._seen.items()
            }
            self._weight = 1.0
