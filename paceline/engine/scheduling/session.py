"""A session: the sequences of one stream, and the order of each sequence's commands.

    command ──▶ waiting (per sequence, in the order sent) ──▶ running job ──▶ answer

Commands of a sequence run in order. Release, Truncate to the running job's start or below, and the end of the stream run
at once and drop the queued commands and the job. A Suggest waits for none. After a failure a sequence refuses commands until a Truncate or Release. A
Fork runs in its parent's order, and the forked sequence's commands wait for it. A released sequence may read the rest of its text
first, as long as nobody needs its blocks; no command reaches it any more. Runs on the worker's thread.
"""

import time
from collections.abc import Callable
from contextlib import suppress

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.scheduling.commands import (
    NO_SUGGESTION,
    Answer,
    Command,
    Fork,
    Open,
    OpenAck,
    Refuse,
    Release,
    Start,
    Suggest,
    Truncate,
)
from paceline.engine.scheduling.job import Job, ReadJob
from paceline.engine.scheduling.preemption import Refusal
from paceline.engine.scheduling.sequence_state import OnClose, SequenceState, Usage, WorkerCounts
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


class Session:
    def __init__(
        self, pool: BlockPool, max_model_len: int,
        reserve_blocks: Callable[[SequenceState, int], None], next_order: Callable[[], int], counts: WorkerCounts,
        on_close: OnClose | None = None, call_later: Callable[[Callable[[], None]], None] = lambda call: call(),
        refusal: Refusal | None = None,
    ) -> None:  # fmt: skip
        """`reserve_blocks(state, length)` may preempt sequences; `on_close` gets the usage of traced sequences; `call_later`
        takes what is to run on the worker's thread; `refusal`: of all sessions.
        """
        self._pool = pool
        self._max_model_len = max_model_len
        self._reserve_blocks = reserve_blocks
        self._next_order = next_order
        self._counts = counts
        self._on_close = on_close
        self._call_later = call_later
        self._refusal = refusal or Refusal()
        self._states: dict[int, SequenceState] = {}
        # The sequences with a job, in the order in which they got it.
        self.running: dict[SequenceState, Job] = {}
        self._last_id = -1
        self.answers: list[Answer] = []
        self.is_closed = False

    @property
    def states(self) -> list[SequenceState]:
        return list(self._states.values())

    @property
    def num_sequences(self) -> int:
        return len(self._states)

    def execute(self, command: Command) -> None:
        if self.is_closed:
            return
        state = self._find(command.sequence_id)
        if isinstance(command, Open):
            self._attempt(command, state)
        elif state is None and isinstance(command, Refuse):
            self._fail(command, command.error, None)
        elif state is None:
            self._fail(command, NotFound(f"sequence {command.sequence_id} is not open"), None)
        elif isinstance(command, Release):
            if not self._reads_before(command, state):
                self._release(state, command.sequence_id)
        elif isinstance(command, Suggest):
            self._suggest(command, state)
        elif isinstance(command, Fork):
            self._queue_fork(command, state)
        elif isinstance(command, Truncate) and state.job is not None and command.length <= state.job.start:
            self._drop_work(state, "dropped by a Truncate")
            self._attempt(command, state)
        else:
            state.waiting.append(command)
            self._advance(state)

    def finish_job(self, state: SequenceState) -> bool:
        """Answers the command and returns whether the sequence goes on with another round by itself."""
        assert state.job is not None
        job, start = state.job, state.start
        if state.is_leaving:
            self._end_job(state)
            self._release(state, start.sequence_id)
            return False
        job.on_finish()
        result = job.result
        if state.usage is not None:
            state.usage.count(job)
        state.runs_alone = False
        self._end_job(state)
        has_more = self._follow(state, job, start)
        self.answers.append(Answer(start.command_id, result, has_more=has_more))
        if not has_more:
            state.return_time.leave(state.idle_since_s)
            self._advance(state)
        return has_more

    def _follow(self, state: SequenceState, job: Job, start: Start) -> bool:
        """Starts what the job goes on with by itself, unless the sequence has another command."""
        # A recurrent state can't be taken back: what the coordinator does not want would have to be read again.
        if state.waiting or state.suggested.is_last or state.sequence.slot is not None or self._refusal.concerns(state):
            return False
        if start.follow is None:
            return False
        for suggested in (state.suggested, NO_SUGGESTION):
            following = start.follow(job, start, suggested)
            if following is None:
                return False
            with suppress(PacelineError):
                # The job's rejected drafts.
                state.sequence.truncate(following.position)
                self._start(following, state, is_optional=suggested is not NO_SUGGESTION)
                state.goes_on_from = job, start
                return True
        # Whoever sends the next command gets to know why not.
        return False

    def _suggest(self, command: Suggest, state: SequenceState) -> None:
        """Keeps suggested drafts for the rounds that the sequence goes on with, the next one if it has not begun."""
        state.suggested = command
        if state.goes_on_from is None or state.job is None or state.sequence.length > state.job.start:
            return
        (job, start), without = state.goes_on_from, state.start
        assert start.follow is not None
        following = start.follow(job, start, command)
        if following is None or following.num_more <= without.num_more:
            return
        self._end_job(state)
        try:
            self._start(following, state, is_optional=True)
        except PacelineError:
            self._start(without, state)
        state.goes_on_from = job, start

    def fail_job(self, state: SequenceState, error: PacelineError) -> None:
        """Fails a job: removes the tokens it fed from the cache."""
        assert state.job is not None
        state.runs_alone = not state.sequence.is_intact
        state.sequence.truncate(min(state.job.start, state.sequence.length))
        start = state.start
        self._end_job(state)
        if state.is_leaving:
            self._release(state, start.sequence_id)
            return
        if state.usage is not None:
            state.usage.failure = error
        self._fail_id(start.command_id, error, state)
        self._advance(state)

    def truncate_now(self, sequence_id: int, length: int) -> int:
        """Truncates out of order and returns the cache's length. Raises NotFound or OutOfRange."""
        state = self._require(sequence_id)
        state.sequence.require_holds(length)
        self._drop_work(state, "dropped by a Truncate")
        state.sequence.truncate(length)
        state.failure = None
        return state.sequence.length

    def release_now(self, sequence_id: int) -> None:
        """Releases out of order. Raises NotFound."""
        self._release(self._require(sequence_id), sequence_id)

    def close(self) -> None:
        # First: a fork that loses its parent may need their blocks.
        self.stop_reading()
        for sequence_id, state in list(self._states.items()):
            self._release(state, sequence_id)
        self.answers.clear()
        self.is_closed = True

    def _require(self, sequence_id: int) -> SequenceState:
        state = self._find(sequence_id)
        if state is None:
            raise NotFound(f"sequence {sequence_id} is not open")
        return state

    def _find(self, sequence_id: int) -> SequenceState | None:
        state = self._states.get(sequence_id)
        return None if state is None or state.is_leaving else state

    def _advance(self, state: SequenceState) -> None:
        # A list, for a chain of forks may be longer than a stack.
        ready = [state]
        while ready:
            state = ready.pop()
            while state.waiting and state.job is None and state.fork is None and state.is_ready:
                command = state.waiting.popleft()
                if isinstance(command, Fork):
                    ready += self._fork(command, state)
                else:
                    self._attempt(command, state)

    def _queue_fork(self, command: Fork, state: SequenceState) -> None:
        """Queues a Fork with its parent, or a Refuse with the sequence itself."""
        parent = self._find(command.parent_id)
        is_new = not (state.sequence.blocks or state.waiting or state.job or state.fork)
        if parent is None or parent is state:
            error = InvalidArgument.of_value("parent_sequence_id", command.parent_id, "another open sequence")
        elif not is_new:
            error = InvalidArgument.of_value("fork", f"of {command.parent_id}", "a sequence's first command after Open")
        else:
            state.fork = command
            parent.waiting.append(command)
            self._advance(parent)
            return
        state.waiting.append(Refuse(command.command_id, command.sequence_id, error))
        self._advance(state)

    def _fork(self, command: Fork, parent: SequenceState) -> list[SequenceState]:
        """Returns the forked sequence's state, if it still exists."""
        state = self._states.get(command.sequence_id)
        if state is None or state.fork is not command:
            return []
        state.fork = None
        try:
            for failure in (state.failure, parent.failure):
                if failure is not None:
                    raise Aborted(f"an earlier command failed: {failure}")
            state.sequence.fork(parent.sequence, command.length)
            state.num_decided = command.length
            state.idle_since_s = time.perf_counter()
        except PacelineError as error:
            self._fail(command, error, state)
        return [state]

    def _attempt(self, command: Command, state: SequenceState | None) -> None:
        try:
            if isinstance(command, Open):
                self._open(command)
                return
            assert state is not None
            if isinstance(command, Truncate):
                state.sequence.truncate(command.length)
                state.failure = None
                return
            if state.failure is not None:
                raise Aborted(f"an earlier command of this sequence failed: {state.failure}")
            if isinstance(command, Refuse):
                raise command.error
            assert isinstance(command, Start)
            state.suggested = NO_SUGGESTION
            self._start(command, state)
        except PacelineError as error:
            self._fail(command, error, state)

    def _open(self, command: Open) -> None:
        if command.sequence_id <= self._last_id:
            raise InvalidArgument.of_value(
                "sequence_id", command.sequence_id, f"larger than {self._last_id}, the last opened"
            )
        self._last_id = command.sequence_id
        state = SequenceState(open_sequence(command.options, self._pool), self._next_order())
        if self._on_close is not None and command.options.traceparent:
            state.usage = Usage()
        self._states[command.sequence_id] = state
        if (grammar := command.options.grammar) is not None:
            # Its commands wait, and nobody else's.
            grammar.compiling.add_done_callback(lambda _: self._call_later(lambda: self._advance(state)))
        self.answers.append(Answer(command.command_id, OpenAck()))

    def _start(self, command: Start, state: SequenceState, is_optional: bool = False) -> None:
        """`is_optional`: no other sequence should suffer if there is no room. Raises PacelineError."""
        sequence = state.sequence
        begin = sequence.length
        if command.position != begin:
            raise PositionMismatch(f"position is {command.position}, but the cache holds {begin} tokens")
        length = begin + len(command.tail) + command.num_more
        if length > self._max_model_len:
            raise OutOfRange(f"the sequence would hold {length} tokens; the model's maximum is {self._max_model_len}")
        # Rejected drafts were truncated, but the last job's may be undecided.
        sequence.commit(min(begin, state.num_decided))
        num_cached = 0
        if begin == 0:
            num_cached = sequence.match_prefix(command.tail[: command.num_reusable])
            self._counts.queried_tokens += len(command.tail)
            self._counts.hit_tokens += num_cached
        try:
            if is_optional:
                sequence.reserve(length)
            else:
                self._reserve_blocks(state, length)
        except ResourceExhausted:
            if not is_optional:
                self._refusal.note(state)
            sequence.truncate(command.position)
            raise
        state.num_decided = begin + len(command.tail)
        job = command.make_job(sequence, command.tail[num_cached:])
        job.start = command.position
        job.num_cached_tokens = num_cached
        job.arrived_s = command.arrived_s
        state.job = self.running[state] = job
        state.start = command
        state.return_time.arrive(command.arrived_s)

    def _end_job(self, state: SequenceState) -> None:
        del self.running[state]
        state.end_job()

    def _drop_work(self, state: SequenceState, why: str) -> None:
        """Cancels the queued commands and the job. The cache keeps the tokens already fed."""
        if state.job is not None:
            self._fail_id(state.start.command_id, Cancelled(why), state, poison=False)
            self._end_job(state)
            # Gives back the blocks that were reserved for tokens not fed.
            state.sequence.truncate(state.sequence.length)
        if state.fork is not None:
            self._fail_id(state.fork.command_id, Cancelled(why), state, poison=False)
            state.fork = None
        while state.waiting:
            waiting = state.waiting.popleft()
            if isinstance(waiting, Fork):
                self._drop_fork(waiting, why)
            elif isinstance(waiting, Start | Refuse):
                self._fail_id(waiting.command_id, Cancelled(why), state, poison=False)

    def _drop_fork(self, command: Fork, why: str) -> None:
        state = self._states.get(command.sequence_id)
        if state is not None and state.fork is command:
            state.fork = None
            self._fail(command, Cancelled(why), state)
            self._advance(state)

    def _reads_before(self, command: Release, state: SequenceState) -> bool:
        """Starts to read a Release's tail, and returns whether there is reason and room to."""
        # The cache can't find tokens after the last whole block.
        end = command.position + len(command.tail)
        tail = command.tail[: max(0, end - end % self._pool.block_size - command.position)]
        is_idle = state.job is None and state.fork is None and not state.waiting and state.failure is None
        # Of a recurrent state only few places can be found.
        is_found = self._pool.caches_prefixes and not self._pool.states.num_slots
        if not (tail and is_idle and is_found):
            return False
        reading = Start(command.command_id, command.sequence_id, command.position, tail, 0, 0, ReadJob)
        with suppress(PacelineError):
            self._start(reading, state, is_optional=True)
            state.is_leaving = True
            # The request is over.
            self._report_usage(state)
        return state.is_leaving

    def stop_reading(self) -> None:
        """Releases the sequences that only read for requests to come."""
        leaving = [(sequence_id, each) for sequence_id, each in self._states.items() if each.is_leaving]
        for sequence_id, each in leaving:
            self._end_job(each)
            # Gives back the blocks that were reserved for tokens not fed.
            each.sequence.truncate(each.sequence.length)
            self._release(each, sequence_id)

    def _release(self, state: SequenceState, sequence_id: int) -> None:
        if state.job is None:
            # Lets the conversation's next request find these blocks. With a running job some tokens may be drafts.
            state.sequence.commit(state.sequence.length)
        self._drop_work(state, "dropped by a Release")
        state.return_time.end()
        state.sequence.truncate(0)
        self._pool.release(state.sequence.blocks)
        state.sequence.blocks.clear()
        del self._states[sequence_id]
        self._report_usage(state)

    def _report_usage(self, state: SequenceState) -> None:
        if self._on_close is not None and state.usage is not None:
            self._on_close(state.sequence.options, state.usage)
        state.usage = None

    def _fail(self, command: Command, error: PacelineError, state: SequenceState | None) -> None:
        self._fail_id(command.command_id, error, state)

    def _fail_id(self, command_id: int, error: PacelineError, state: SequenceState | None, poison: bool = True) -> None:
        if state is not None and poison and state.failure is None:
            state.failure = error
        length = None if state is None else state.sequence.length
        self.answers.append(Answer(command_id, error, length))
