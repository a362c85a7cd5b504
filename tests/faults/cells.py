"""The matrix: which fault falls where, in which phase, under how many generations."""

import fnmatch
from dataclasses import dataclass
from itertools import product

from tests.faults.faults import FAULTS, Fault
from tests.faults.loads import DRAFTING, Asked
from tests.faults.phases import Phase

SERVERS = ("draft", "target")
# Of the HTTP side: clients speak to the gateway there.
PUBLIC = ("coordinator", "gateway")
LINKS = ("link-draft", "link-target")
PLACES: dict[str, tuple[str, ...]] = {
    "kill": (*SERVERS, *PUBLIC),
    "stop-5s": (*SERVERS, *PUBLIC),
    "term": (*SERVERS, *PUBLIC),
    "cut": (*LINKS, "link-coordinator"),
    "undecodable": LINKS,
    "unknown-kind": LINKS,
    "other-weights": SERVERS,
}
# Many: each way of drafting greedily and from a seed.
LOADS = (1, MANY := 2 * len(DRAFTING))
# Long to run, so there are few.
LONG_CELLS = [("stop-60s", place, Phase.MID, MANY) for place in SERVERS]
PROMPT_TOKENS = {Phase.PREFILL: 300, Phase.BETWEEN: 6, Phase.MID: 6}
MAX_TOKENS = {Phase.PREFILL: 100, Phase.BETWEEN: 300, Phase.MID: 300}


@dataclass(frozen=True, slots=True)
class Cell:
    """One fault at one place in one phase, under some generations."""

    number: int
    fault_name: str
    place: str
    phase: Phase
    num_generations: int

    @property
    def name(self) -> str:
        return f"{self.fault_name}/{self.place}/{self.phase}/{self.num_generations}"

    @property
    def fault(self) -> Fault:
        return FAULTS[self.fault_name]

    @property
    def end(self) -> str:
        """The service, or who is behind the link."""
        return self.place.removeprefix("link-")

    @property
    def watched(self) -> str:
        """The link on which the phase is seen. Where a public service is disturbed, it is what the target is asked."""
        return "draft" if self.end == "draft" else "target"

    @property
    def is_over_http(self) -> bool:
        return self.end in PUBLIC

    @property
    def asked(self) -> list[Asked]:
        """One generation alone is greedy in one cell and seeded in the next. Of many half are greedy."""
        first = self.number % 2 if self.num_generations == 1 else 0
        sizes = PROMPT_TOKENS[self.phase], MAX_TOKENS[self.phase]
        return [Asked(number, *sizes) for number in range(first, first + self.num_generations)]


def all_cells() -> list[Cell]:
    short = [
        (fault, place, phase, num_generations)
        for fault, places in PLACES.items()
        for place, phase, num_generations in product(places, Phase, LOADS)
    ]
    return [Cell(number, *each) for number, each in enumerate([*short, *LONG_CELLS])]


def cells_like(pattern: str) -> list[Cell]:
    """Those whose name the pattern matches, as file names are matched."""
    return [each for each in all_cells() if fnmatch.fnmatch(each.name, pattern)]
