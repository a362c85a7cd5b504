"""The state of a sequence: queued commands, running job and usage."""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.scheduling.batching_policy import ReturnTime
from paceline.engine.scheduling.commands import NO_START, NO_SUGGESTION, Command, Fork, Start, Suggest
from paceline.engine.scheduling.job import Job
from paceline.errors import PacelineError


@dataclass(slots=True)
class Usage:
    """Usage of a sequence since its Open, without dropped jobs."""

    opened_s: float = field(default_factory=time.perf_counter)
    jobs: int = 0
    # Tokens of contexts and drafts that were fed and stayed in the cache when their job ended.
    read_tokens: int = 0
    # Tokens of contexts that the cache already held.
    cached_tokens: int = 0
    compute_us: int = 0
    queued_us: int = 0
    # The last error of the engine.
    failure: PacelineError | None = None

    def count(self, job: Job) -> None:
        """Adds a finished job, before the sequence's next command runs."""
        self.jobs += 1
        self.read_tokens += job.sequence.length - job.start - job.num_cached_tokens
        self.cached_tokens += job.num_cached_tokens
        self.compute_us += job.compute_us + job.drafting_us
        self.queued_us += job.queued_us


# Called when a sequence ends.
OnClose = Callable[[SequenceOptions, Usage], None]


@dataclass(slots=True)
class WorkerCounts:
    """Counters since startup."""

    # Tokens looked up in the prefix cache, and hits.
    queried_tokens: int = 0
    hit_tokens: int = 0
    # Sequences that lost their blocks and recurrent states to others.
    preempted_sequences: int = 0
    # Checks of the cache's bookkeeping that passed. One that fails ends the worker.
    integrity_checks: int = 0


@dataclass(slots=True, eq=False)
class SequenceState:
    sequence: Sequence
    # Order of Open across all streams. The youngest sequence is preempted first.
    opened_order: int
    waiting: deque[Command] = field(default_factory=deque)
    job: Job | None = None
    # The job's command.
    start: Start = NO_START
    # The newest Suggest, and the job and its command that the running job goes on from, if it was not asked for.
    suggested: Suggest = NO_SUGGESTION
    goes_on_from: tuple[Job, Start] | None = None
    # Tokens up to the last job's drafts. A job after it may build on drafts, but only on those that this one's tail decided.
    num_decided: int = 0
    failure: PacelineError | None = None
    # Its state was lost in a failed step, which may have been its own fault.
    runs_alone: bool = False
    # The Fork that the sequence begins with, while it waits in the parent's queue.
    fork: Fork | None = None
    return_time: ReturnTime = field(default_factory=ReturnTime)
    # When it last got its blocks or ended a job, however that ended.
    idle_since_s: float = field(default_factory=time.perf_counter)
    # Whether it is released once its job, a ReadJob, is done.
    is_leaving: bool = False
    # Only for sequences that belong to a trace.
    usage: Usage | None = None

    @property
    def is_ready(self) -> bool:
        """Whether its grammar is compiled, or can't be."""
        grammar = self.sequence.options.grammar
        return grammar is None or grammar.compiling.done()

    def end_job(self) -> None:
        self.job, self.start, self.goes_on_from = None, NO_START, None
        self.idle_since_s = time.perf_counter()
