"""What a sequence cost, for those who ask for accounts (`Worker.settle`). On the device thread."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.scheduling.job import Job
from paceline.errors import PacelineError


@dataclass(slots=True)
class Account:
    """Of one sequence, from its Open on. Of jobs that were dropped nothing is counted."""

    opened_s: float = field(default_factory=time.perf_counter)
    jobs: int = 0
    # Rows that the model was fed and that stayed in the cache when their job ended: of contexts, and of drafts.
    read_tokens: int = 0
    # Of contexts those that the cache held already.
    cached_tokens: int = 0
    computed_us: int = 0
    queued_us: int = 0
    # On what the engine failed last.
    failure: PacelineError | None = None

    def count(self, job: Job) -> None:
        """A job that is done, before the sequence's next command runs."""
        self.jobs += 1
        self.read_tokens += job.sequence.length - job.start - job.num_cached_tokens
        self.cached_tokens += job.num_cached_tokens
        self.computed_us += job.computed_us
        self.queued_us += job.queued_us


# Called when a sequence is over.
Settle = Callable[[SequenceOptions, Account], None]
