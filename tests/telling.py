"""Figures that tests tell: the run prints them at its end, and judges none."""

import contextlib
import time
from collections.abc import Callable, Iterator

# The name of a report's property that holds one.
FIGURE = "figure"
Tell = Callable[[str], None]


@contextlib.contextmanager
def timed(what: str, tell: Tell) -> Iterator[None]:
    """Tells how long the block took, unless it raises."""
    started_s = time.monotonic()
    yield
    tell(f"{what}: {time.monotonic() - started_s:.1f} s")
