"""How requests come: so many at once, or so many a second."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from paceline.checks import require
from paceline.errors import InvalidArgument

MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0
# A slice is long beside its end, where fewer and fewer requests are left, and short beside the
# minutes in which a machine changes its pace.
TURNS_PER_SLICE = 4
SECONDS_PER_SLICE = 10.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Each of `concurrency` clients sends a request when its last one is answered. Raises InvalidArgument."""

    concurrency: int

    def __post_init__(self) -> None:
        ok = 1 <= self.concurrency <= MAX_CONCURRENCY
        require(ok, "--concurrency", self.concurrency, f"in [1, {MAX_CONCURRENCY}]")

    @property
    def label(self) -> str:
        return f"{self.concurrency} at once"

    @property
    def short_label(self) -> str:
        """For a point of a plot."""
        return str(self.concurrency)

    @property
    def requests_per_slice(self) -> int:
        return TURNS_PER_SLICE * self.concurrency


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come by chance, `rate` a second, whether or not the others are answered. Raises InvalidArgument."""

    rate: float

    def __post_init__(self) -> None:
        require(0 < self.rate <= MAX_RATE, "--rate", self.rate, f"in (0, {MAX_RATE:.0f}] requests a second")

    @property
    def label(self) -> str:
        return f"{self.rate:g} requests/s"

    @property
    def short_label(self) -> str:
        """For a point of a plot."""
        return f"{self.rate:g}/s"

    @property
    def requests_per_slice(self) -> int:
        return max(TURNS_PER_SLICE, math.ceil(self.rate * SECONDS_PER_SLICE))


Load = ClosedLoop | OpenLoop


def parse_sweep(text: str) -> list[Load]:
    """From `concurrency=1,2,4` or `rate=0.5,1,2`. Raises InvalidArgument."""
    name, _, values = text.partition("=")
    kinds: dict[str, Callable[[str], Load]] = {
        "concurrency": lambda value: ClosedLoop(int(value)),
        "rate": lambda value: OpenLoop(float(value)),
    }
    try:
        loads = [kinds[name](value) for value in values.split(",")]
    except (KeyError, ValueError):
        raise InvalidArgument.of_value("--sweep", text, "like concurrency=1,2,4 or rate=0.5,1,2") from None
    require(len(set(loads)) == len(loads), "--sweep", text, "a list without repetitions")
    return loads
