"""When requests of an open loop come."""

import random
from collections.abc import Iterator


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Arrival times in seconds from the start, without end: the gaps are exponential with mean 1 / rate.

    The same seed gives the same arrivals, and another rate the same ones on another scale.
    """
    source = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += source.expovariate(1.0) / rate
        yield now_s
