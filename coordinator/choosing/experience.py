"""What rounds of all generations have taught. A generation begins with it, and adds to it."""

from collections.abc import Callable, Hashable

from coordinator.acceptance import DraftedBy
from coordinator.choosing.active_generations import ActiveGenerations
from coordinator.choosing.costs import Costs
from coordinator.choosing.pace import Pace
from coordinator.choosing.probe import Probe
from coordinator.choosing.rates import Rates

# Factors on the weight of older cases, for each new one: of all generations, and of a generation's own.
MEMORY, OWN_MEMORY = 0.998, 0.98
# The first guess counts as so many cases, and the experience of all generations as so many of one's own.
FIRST_WEIGHT, SHARED_WEIGHT = 4.0, 10.0


class Experience:
    """Costs, and how often each source is right: greedy and sampled texts differ in that, and in their pace."""

    def __init__(self, active: ActiveGenerations) -> None:
        self.costs = Costs(active)
        self.probe = Probe(0.0, 0.0)
        self._paces = {is_greedy: Pace() for is_greedy in (True, False)}
        self._rates: dict[tuple[DraftedBy, bool], Rates] = {}

    def pace(self, is_greedy: bool) -> Pace:
        return self._paces[is_greedy]

    def rates(self, drafter: DraftedBy, is_greedy: bool, first: Callable[[Hashable], float]) -> "SharedRates":
        """`first`: the first guess for a kind of case."""
        shared = self._rates.setdefault((drafter, is_greedy), Rates(first, FIRST_WEIGHT, MEMORY))
        return SharedRates(shared)


class SharedRates:
    """One generation's rates, which begin with those of all generations."""

    def __init__(self, shared: Rates) -> None:
        self.shared = shared
        self._own = Rates(shared.__getitem__, SHARED_WEIGHT, OWN_MEMORY)

    def __getitem__(self, kind: Hashable) -> float:
        return self._own[kind]

    def learn(self, kind: Hashable, has_happened: bool) -> None:
        self.shared.learn(kind, has_happened)
        self._own.learn(kind, has_happened)
