"""A sequence of a session: what it holds, what runs and what waits."""

import time
from collections import deque
from dataclasses import dataclass, field

from paceline.engine.cache.sequence import Sequence
from paceline.engine.scheduling.account import Account
from paceline.engine.scheduling.batching_policy import ReturnTime
from paceline.engine.scheduling.commands import Command, Fork
from paceline.engine.scheduling.job import Job
from paceline.errors import PacelineError


@dataclass(slots=True, eq=False)
class SequenceState:
    """A sequence with its queued commands and its running job."""

    sequence: Sequence
    # Order of Open across all streams. The youngest sequence is evicted first.
    opened_order: int
    waiting: deque[Command] = field(default_factory=deque)
    job: Job | None = None
    job_command_id: int = 0
    failure: PacelineError | None = None
    # The Fork that the sequence begins with, while it waits in the parent's queue.
    fork: Fork | None = None
    return_time: ReturnTime = field(default_factory=ReturnTime)
    # When it last got its blocks or ended a job, however that ended.
    idle_since_s: float = field(default_factory=time.perf_counter)
    # Where somebody asks for it.
    account: Account | None = None

    def end_job(self) -> None:
        """The job is done, failed or dropped."""
        self.job = None
        self.idle_since_s = time.perf_counter()
