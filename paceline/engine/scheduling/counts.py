"""What the worker counts on the device thread, for those who watch it. Plain numbers: other threads read them."""

from dataclasses import dataclass


@dataclass(slots=True)
class WorkerCounts:
    """Since the start."""

    # Tokens with which empty sequences began, and those of them that the cache held.
    queried_tokens: int = 0
    hit_tokens: int = 0
    # Sequences that lost their blocks to others.
    evicted_sequences: int = 0
    # Checks of the cache's books that found them right; one that does not ends the worker.
    integrity_checks: int = 0
