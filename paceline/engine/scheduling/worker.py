"""The worker: the device thread, its inbox, and the return of answers to the event loop.

    event loop ──submit──▶ inbox ──▶ sessions ──▶ active jobs ──▶ Runner.step ─┐
        ▲                                                                      │
        └───────────────── one call_soon_threadsafe a step ◀── answers ◀───────┘

A batch has the jobs that are ready when the model is free (continuous batching), and those worth waiting for
(`batching_policy`). Long prompts are fed in chunks (`step`).
"""

import asyncio
import itertools
import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import TypeVar

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.scheduling.batching_policy import BatchingPolicy
from paceline.engine.scheduling.commands import Answer, Command
from paceline.engine.scheduling.compute_lock import ComputeLock, Lease
from paceline.engine.scheduling.job import Job
from paceline.engine.scheduling.learned_times import LearnedTimes
from paceline.engine.scheduling.load_meter import LoadMeter
from paceline.engine.scheduling.preemption import Refusal, reserve
from paceline.engine.scheduling.sequence_state import OnClose, SequenceState, WorkerCounts
from paceline.engine.scheduling.session import Session
from paceline.engine.scheduling.step import ROUND_TOKENS, StepRunner, run_step, share_budget

T = TypeVar("T")
# Called on the device thread after a step: its seconds, jobs, tokens and failed jobs.
OnStep = Callable[[float, int, int, int], None]
# Called on the event loop with the answers of one delivery and the number of engine steps so far.
Deliver = Callable[[list[Answer], int], None]


class Worker:
    """Owns the model, the block pool and all sessions. Private methods run on the device thread."""

    def __init__(
        self, runner: StepRunner, pool: BlockPool, compute_lock: ComputeLock, batching_policy: BatchingPolicy,
        max_model_len: int, max_num_batched_tokens: int, loop: asyncio.AbstractEventLoop, on_step: OnStep | None = None,
        on_close: OnClose | None = None,
    ) -> None:  # fmt: skip
        """`on_step` is called after each engine step, `on_close` when a traced sequence ends."""
        self._runner = runner
        self._pool = pool
        self._compute_lock = compute_lock
        self._batching_policy = batching_policy
        self._max_model_len = max_model_len
        self._max_num_batched_tokens = max_num_batched_tokens
        self._loop = loop
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._orders = itertools.count()
        self._sessions: dict[Session, Deliver] = {}
        self._on_step, self._on_close = on_step, on_close
        # Engine steps so far. Other threads read it.
        self.num_steps = 0
        self.counts = WorkerCounts()
        self._refusal = Refusal()
        self.load, self.times = LoadMeter(), LearnedTimes()
        # Whether to check the cache's bookkeeping when idle.
        self.checks_integrity = False
        self._running: Future[None] | None = None
        # Workers on the same thread.
        self._beside: list[Worker] = []
        # Since when there have been jobs without a step (time.perf_counter); 0 if it is not so.
        self._ready_s = 0.0
        # When the step that runs began (time.monotonic). Other threads read it.
        self._step_began_s: float | None = None

    def start(self, device_thread: Executor, beside: Sequence["Worker"] = ()) -> None:
        """Occupies `device_thread`, the thread that built the model, until `stop`.

        beside: workers of models that it built too. They start as well, and take turns with this one: a second thread
        would compute with a second team of OpenMP threads, and two teams on the same cores slow each other down.
        """
        workers = [*beside, self]
        for each in workers:
            each._inbox = self._inbox
            each._beside = [other for other in workers if other is not each]
            each._compute_lock.share_files(self._compute_lock)
        running = device_thread.submit(_run, workers)
        for each in workers:
            each._running = running

    def stop(self) -> None:
        """Waits for the step in progress and stops."""
        self._inbox.put(None)
        if self._running is not None:
            self._running.result()

    async def wait_stopped(self) -> None:
        """Waits until the worker has stopped, and raises the exception that stopped it."""
        assert self._running is not None, "the worker was never started"
        await asyncio.wrap_future(self._running)

    def open_session(self, deliver: Deliver) -> Session:
        """Opens a session. `deliver` gets its answers on the event loop."""
        session = Session(
            self._pool,
            self._max_model_len,
            self._reserve_blocks,
            lambda: next(self._orders),
            self.counts,
            self._on_close,
            self._inbox.put,
            self._refusal,
        )
        self._inbox.put(lambda: self._sessions.__setitem__(session, deliver))
        return session

    def submit(self, session: Session, commands: list[Command]) -> None:
        def execute() -> None:
            for command in commands:
                session.execute(command)

        self._inbox.put(execute)

    def close_session(self, session: Session) -> None:
        """Releases the session's sequences before the next engine step."""

        def close() -> None:
            session.close()
            self._sessions.pop(session, None)

        self._inbox.put(close)

    async def call(self, function: Callable[[], T]) -> T:
        """Runs `function` on the device thread between two steps, and raises what it raises."""
        future: Future[T] = Future()

        def run() -> None:
            # Its caller may have left; from now on it can't.
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._inbox.put(run)
        return await asyncio.wrap_future(future)

    @property
    def step_s(self) -> float:
        """Seconds since the running step began, 0 between steps. Thread-safe."""
        began_s = self._step_began_s
        return 0.0 if began_s is None else time.monotonic() - began_s

    @property
    def num_sequences(self) -> int:
        return sum(session.num_sequences for session in list(self._sessions))

    @property
    def is_busy(self) -> bool:
        """Whether any job is running. Read it through `call`."""
        return any(session.running for session in self._sessions)

    def check_integrity(self) -> None:
        """Raises AssertionError if the pool and the sequences disagree. Call it through `call`."""
        sequences = [state.sequence for session in self._sessions for state in session.states]
        self._pool.check_integrity(sequence.blocks for sequence in sequences)
        self._pool.states.check_integrity(sequence.slot for sequence in sequences if sequence.slot is not None)

    def _turn(self, waits: bool = True) -> bool:
        """Returns whether it computed, or had nothing to compute."""
        is_busy = self.is_busy
        computes = is_busy and self._has_batch(waits)
        if not is_busy:
            self._ready_s = 0.0
        if computes:
            with self._compute_lock.lease() as lease:
                self._compute_under(lease)
        self._deliver()
        if self.checks_integrity and not self.is_busy:
            self.check_integrity()
            self.counts.integrity_checks += 1
        return computes or not is_busy

    def _jobs(self) -> list[Job]:
        return [job for session in self._sessions for job in session.running.values()]

    def _take_inbox(self, wait_s: float | None) -> None:
        """Waits up to `wait_s` for the first item (None: forever). Raises _Stopped."""
        while True:
            try:
                item = self._inbox.get(timeout=wait_s) if wait_s != 0 else self._inbox.get_nowait()
            except queue.Empty:
                return
            if item is None:
                raise _Stopped
            item()
            wait_s = 0.0

    def _has_batch(self, waits: bool) -> bool:
        """Waits for the jobs that are worth waiting for. Returns False if it is the other worker's turn meanwhile."""
        if not waits:
            return True
        self._ready_s = self._ready_s or time.perf_counter()
        # No sequence leaves before the next step, and those that come back say so themselves.
        return_times = [state.return_time for session in self._sessions for state in session.states]
        while jobs := self._jobs():
            num_tokens = min(sum([len(job.pending) for job in jobs]), self._max_num_batched_tokens)
            wait_s = self._batching_policy.wait_s(self._ready_s, len(jobs), num_tokens, return_times)
            if wait_s == 0:
                break
            if any(each.is_busy for each in self._beside):
                return False
            self._take_inbox(wait_s)
        self._ready_s = 0.0
        return True

    def _compute_under(self, lease: Lease) -> None:
        """Runs steps while the lease lasts."""
        self._wait_for_peer_work(lease)
        while True:
            # Commands that arrived while the peer computed join this batch.
            self._take_inbox(wait_s=0.0)
            lease.num_handed_over += self._step()
            # Deliver before the lease ends, so that the peer soon has the work that follows from these answers.
            self._deliver()
            if lease.is_over or not self.is_busy:
                return

    def _wait_for_peer_work(self, lease: Lease) -> None:
        """Waits for what the peer handed over in the previous lease."""
        if (before := lease.before) is None:
            return
        while (wait_s := self._batching_policy.peer_wait_s(before.ended_s)) > 0:
            if sum(job.arrived_s >= before.started_s for job in self._jobs()) >= before.num_handed_over:
                break
            if any(each.is_busy for each in self._beside):
                break
            self._take_inbox(wait_s)

    def _step(self) -> int:
        """Returns the number of finished jobs that the peer continues."""
        owners = {job: (session, state) for session in self._sessions for state, job in session.running.items()}
        if not owners:
            return 0
        started_s = time.perf_counter()
        # In the same order in each step: what a runner keeps of a row's sequence stays valid.
        jobs = sorted(owners, key=lambda job: owners[job][1].opened_order)
        alone = [job for job in jobs if owners[job][1].runs_alone][:1]
        shares = share_budget(alone or jobs, self._max_num_batched_tokens, self.num_steps)
        self._step_began_s = time.monotonic()
        drafting_s = shares[0][0].drafting_s
        length = _total_length(shares)
        failed = run_step(self._runner, shares)
        drafting_s = shares[0][0].drafting_s - drafting_s
        self._step_began_s = None
        self.num_steps += 1
        duration_s = time.perf_counter() - started_s
        num_tokens = sum(num_tokens for _, num_tokens in shares)
        self._batching_policy.count_step(duration_s, num_tokens)
        self.load.count_step(duration_s)
        # One forward pass that samples at its tokens: without a ReadJob or a large part of a prompt.
        only_reads = any(owners[job][1].is_leaving or share > ROUND_TOKENS for job, share in shares)
        if _total_length(shares) == length + num_tokens and not only_reads:
            # A draft head's times are measured apart.
            self.times.count_step(duration_s - drafting_s, num_tokens)
        if self._on_step is not None:
            self._on_step(duration_s, len(shares), num_tokens, len(failed))
        num_handed_over = 0
        for job, _ in shares:
            job.count_step(duration_s)
            session, state = owners[job]
            if state.job is not job:
                # It only read, and has just given way to another.
                continue
            if (error := failed.get(job)) is not None:
                session.fail_job(state, error)
            elif job.is_done:
                goes_on = session.finish_job(state)
                num_handed_over += job.expects_peer_work and not goes_on
        return num_handed_over

    def _reserve_blocks(self, state: SequenceState, length: int) -> None:
        missing = state.sequence.missing_blocks(length)
        if missing == 0:
            return
        if missing > self._pool.num_free:
            for session in self._sessions:
                session.stop_reading()
        everyone = (other for session in self._sessions for other in session.states)
        self.counts.preempted_sequences += reserve(self._pool, state, length, everyone)

    def _deliver(self) -> None:
        ready: list[tuple[Deliver, list[Answer]]] = []
        for session, deliver in self._sessions.items():
            if answers := session.answers:
                session.answers = []
                ready.append((deliver, answers))
        if ready:
            self._loop.call_soon_threadsafe(_hand_over, ready, self.num_steps)


def _total_length(shares: Sequence[tuple[Job, int]]) -> int:
    return sum([job.sequence.length for job, _ in shares])


class _Stopped(Exception):
    """The worker was told to stop."""


def _run(workers: Sequence[Worker]) -> None:
    with suppress(_Stopped):
        while True:
            workers[0]._take_inbox(wait_s=0.0 if any(each.is_busy for each in workers) else None)
            # All of them, whether or not the first one computes.
            turns = [each._turn() for each in workers]
            if not any(turns):
                # Each waits for sequences that the other has.
                workers[0]._turn(waits=False)
            # A command that came during another's turn may have failed at once.
            for each in workers:
                each._deliver()


def _hand_over(ready: list[tuple[Deliver, list[Answer]]], steps: int) -> None:
    for deliver, answers in ready:
        deliver(answers, steps)
