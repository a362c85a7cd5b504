"""The sequences of one stream, and the order of the commands for each of them.

    command ──▶ waiting (per sequence, in the order sent) ──▶ running job ──▶ answer

Commands of one sequence are carried out in order. A Release, a Truncate to below where
the running job began, and the end of the stream overtake: they drop what is queued and
running. After a failure a sequence refuses everything until a Truncate or Release.
Everything here runs on the worker's thread.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.scheduling.batching_policy import Absence
from paceline.engine.scheduling.job import Job
from paceline.errors import (
    Aborted,
    Cancelled,
    InvalidArgument,
    NotFound,
    OutOfRange,
    PacelineError,
    PositionMismatch,
    ResourceExhausted,
)


@dataclass(frozen=True, slots=True)
class Command:
    """One command for one sequence. `command_id` is echoed in its answer."""

    command_id: int
    sequence_id: int


@dataclass(frozen=True, slots=True)
class Open(Command):
    options: SequenceOptions


@dataclass(frozen=True, slots=True)
class Start(Command):
    """Starts a job at `position`, which must be the cache's length.

    It will feed `tail` and up to `num_more` tokens. Of an empty sequence's tail, up to `num_reusable` tokens
    need not be fed where the cache still holds them; `make_job` gets the rest.
    """

    position: int
    tail: list[int]
    num_more: int
    num_reusable: int
    make_job: Callable[[Sequence, list[int]], Job]
    # `time.perf_counter`: it may wait for a step in progress before it is carried out.
    arrived_s: float = field(default_factory=time.perf_counter, kw_only=True)


@dataclass(frozen=True, slots=True)
class Truncate(Command):
    length: int


@dataclass(frozen=True, slots=True)
class Release(Command):
    pass


@dataclass(frozen=True, slots=True)
class Refuse(Command):
    """A command that was found bad before it got here; it fails in its place in the order."""

    error: PacelineError


@dataclass(frozen=True, slots=True)
class Opened:
    """Answer to Open."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a command: a result, or an error with the cache's length where the sequence is known."""

    command_id: int
    result: Any
    cache_length: int | None = None


@dataclass(slots=True, eq=False)
class Slot:
    """A sequence with its queue."""

    sequence: Sequence
    # Order of arrival across all streams: the youngest is evicted first.
    birth: int
    waiting: deque[Command] = field(default_factory=deque)
    job: Job | None = None
    job_command_id: int = 0
    failure: PacelineError | None = None
    absence: Absence = field(default_factory=Absence)


class Session:
    """Sequence ids belong to a session; when it closes, all its sequences are released."""

    def __init__(
        self, pool: BlockPool, max_model_len: int,
        make_room: Callable[[Slot, int], None], next_birth: Callable[[], int],
    ) -> None:  # fmt: skip
        """`make_room(slot, length)` reserves blocks, evicting others if it must."""
        self._pool = pool
        self._max_model_len = max_model_len
        self._make_room = make_room
        self._next_birth = next_birth
        self._slots: dict[int, Slot] = {}
        self._last_id = -1
        self.answers: list[Answer] = []
        self.is_closed = False

    @property
    def slots(self) -> list[Slot]:
        return list(self._slots.values())

    def execute(self, command: Command) -> None:
        """Carries a command out, or queues it behind the sequence's running job."""
        if self.is_closed:
            return
        slot = self._slots.get(command.sequence_id)
        if isinstance(command, Open):
            self._attempt(command, slot)
        elif slot is None and isinstance(command, Refuse):
            self._fail(command, command.error, None)
        elif slot is None:
            self._fail(command, NotFound(f"sequence {command.sequence_id} is not open"), None)
        elif isinstance(command, Release):
            self._release(slot, command.sequence_id)
        elif isinstance(command, Truncate) and slot.job is not None and command.length < slot.job.start:
            self._drop_work(slot, "dropped by a Truncate")
            self._attempt(command, slot)
        else:
            slot.waiting.append(command)
            self._advance(slot)

    def finish_job(self, slot: Slot) -> None:
        """Answers the slot's job, which is done, and goes on with what waits behind it."""
        assert slot.job is not None
        self.answers.append(Answer(slot.job_command_id, slot.job.result))
        slot.job = None
        slot.absence.leave(time.perf_counter())
        self._advance(slot)

    def fail_job(self, slot: Slot, error: PacelineError) -> None:
        """The slot's job failed in the engine: takes back what it fed."""
        assert slot.job is not None
        slot.sequence.truncate(min(slot.job.start, slot.sequence.length))
        slot.job = None
        self._fail_id(slot.job_command_id, error, slot)
        self._advance(slot)

    def truncate_now(self, sequence_id: int, length: int) -> int:
        """The unary Truncate: returns the cache's length. Raises NotFound, OutOfRange."""
        slot = self._require(sequence_id)
        self._drop_work(slot, "dropped by a Truncate")
        slot.sequence.truncate(length)
        slot.failure = None
        return slot.sequence.length

    def release_now(self, sequence_id: int) -> None:
        """The unary Release. Raises NotFound."""
        self._release(self._require(sequence_id), sequence_id)

    def close(self) -> None:
        """Releases everything; nobody is left to answer."""
        for sequence_id, slot in list(self._slots.items()):
            self._release(slot, sequence_id)
        self.answers.clear()
        self.is_closed = True

    def _require(self, sequence_id: int) -> Slot:
        if sequence_id not in self._slots:
            raise NotFound(f"sequence {sequence_id} is not open")
        return self._slots[sequence_id]

    def _advance(self, slot: Slot) -> None:
        while slot.waiting and slot.job is None:
            self._attempt(slot.waiting.popleft(), slot)

    def _attempt(self, command: Command, slot: Slot | None) -> None:
        """Carries out one command whose turn it is."""
        try:
            if isinstance(command, Open):
                self._open(command)
                return
            assert slot is not None
            if isinstance(command, Truncate):
                slot.sequence.truncate(command.length)
                slot.failure = None
                return
            if slot.failure is not None:
                raise Aborted(f"an earlier command of this sequence failed: {slot.failure}")
            if isinstance(command, Refuse):
                raise command.error
            assert isinstance(command, Start)
            self._start(command, slot)
        except PacelineError as error:
            self._fail(command, error, slot)

    def _open(self, command: Open) -> None:
        if command.sequence_id <= self._last_id:
            raise InvalidArgument.field(
                "sequence_id", command.sequence_id, f"larger than {self._last_id}, the last opened"
            )
        self._last_id = command.sequence_id
        self._slots[command.sequence_id] = Slot(Sequence(command.options, self._pool), self._next_birth())
        self.answers.append(Answer(command.command_id, Opened()))

    def _start(self, command: Start, slot: Slot) -> None:
        sequence = slot.sequence
        if command.position != sequence.length:
            raise PositionMismatch(command.position, sequence.length)
        length = sequence.length + len(command.tail) + command.num_more
        if length > self._max_model_len:
            raise OutOfRange(f"the sequence would hold {length} tokens; the model's maximum is {self._max_model_len}")
        # All that is in the cache at this moment belongs to the context: drafts that do not were truncated.
        sequence.confirm(sequence.length)
        num_cached = sequence.adopt(command.tail[: command.num_reusable]) if sequence.length == 0 else 0
        try:
            self._make_room(slot, length)
        except ResourceExhausted:
            sequence.truncate(command.position)
            raise
        slot.job = command.make_job(sequence, command.tail[num_cached:])
        slot.job.num_cached_tokens = num_cached
        slot.job.arrived_s = command.arrived_s
        slot.job_command_id = command.command_id
        slot.absence.arrive(command.arrived_s)

    def _drop_work(self, slot: Slot, why: str) -> None:
        """Cancels what is queued and running; the cache keeps what the job had fed."""
        if slot.job is not None:
            self._fail_id(slot.job_command_id, Cancelled(why), slot, poison=False)
            slot.job = None
        while slot.waiting:
            waiting = slot.waiting.popleft()
            if isinstance(waiting, Start | Refuse):
                self._fail_id(waiting.command_id, Cancelled(why), slot, poison=False)

    def _release(self, slot: Slot, sequence_id: int) -> None:
        if slot.job is None:
            # For the next turn of a conversation. With a job some of it might be drafts.
            slot.sequence.confirm(slot.sequence.length)
        self._drop_work(slot, "dropped by a Release")
        slot.sequence.truncate(0)
        self._pool.release(slot.sequence.blocks)
        slot.sequence.blocks.clear()
        del self._slots[sequence_id]

    def _fail(self, command: Command, error: PacelineError, slot: Slot | None) -> None:
        self._fail_id(command.command_id, error, slot)

    def _fail_id(self, command_id: int, error: PacelineError, slot: Slot | None, poison: bool = True) -> None:
        if slot is not None and poison and slot.failure is None:
            slot.failure = error
        length = None if slot is None else slot.sequence.length
        self.answers.append(Answer(command_id, error, length))
