"""The worker's end: asked for, or by a fault that must not go unnoticed; and whom it waits for."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.engine import Engine, build_engine
from paceline.engine.engine_config import TARGET_ROLE, EngineConfig
from paceline.engine.scheduling.commands import Answer, Command, Fork, Open, Release, Start, Truncate
from paceline.engine.scheduling.compute_lock import LAST_LEASE
from paceline.errors import PacelineError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Rule
from target_server.verify_job import VerifyJob, VerifySpec


async def build_tiny(device_thread: ThreadPoolExecutor, compute_lock_file: str | None = None) -> Engine:
    config = EngineConfig(
        model="dummy:tiny",
        dtype="float32",
        kv_cache_memory=1 << 20,
        block_size=16,
        threads=1,
        compute_lock_file=compute_lock_file,
    )
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(device_thread, lambda: build_engine(config, TARGET_ROLE, loop))


async def test_a_worker_that_is_stopped_ends_without_a_fault() -> None:
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.checks_integrity = True
        engine.worker.start(device_thread)
        await engine.worker.call(lambda: None)
        engine.worker.stop()
        await engine.worker.wait_stopped()


async def test_books_that_do_not_balance_end_the_worker_and_say_so() -> None:
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.checks_integrity = True
        engine.worker.start(device_thread)
        # A block that no sequence holds.
        await engine.worker.call(lambda: engine.pool.allocate(1))
        with pytest.raises(AssertionError, match="block 0: count 1, held 0"):
            await engine.worker.wait_stopped()


async def test_a_call_whose_caller_leaves_ends_no_worker() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait(20)

    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.start(device_thread)
        calls = [asyncio.create_task(engine.worker.call(each)) for each in (work, lambda: None)]
        # One runs, and the other waits for it.
        await asyncio.to_thread(begun.wait, 20)
        for each in calls:
            each.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        may_end.set()
        async with asyncio.timeout(20):
            assert await engine.worker.call(lambda: 7) == 7
        engine.worker.stop()


@pytest.fixture
async def with_peer(tmp_path: Path) -> AsyncIterator[Engine]:
    """A worker that would wait for ten seconds for whom the peer hands over."""
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread, str(tmp_path / "lock"))
        engine.worker._batching_policy.count_step(20.0, num_tokens=1)
        engine.worker.start(device_thread)
        yield engine
        engine.worker.stop()


def hand_over(path: Path, count: int) -> None:
    """What a peer leaves behind that answered `count` sequences just now."""
    now_s = time.perf_counter()
    path.write_bytes(LAST_LEASE.pack(4711, now_s - 0.01, now_s, count))


def verify(sequence_id: int, first_token: int = 5) -> list[Command]:
    check = VerifySpec(drafts=[], supports=[], rule=Rule.MATCH)
    options = SequenceOptions(SamplingParams(temperature=0, seed=0), 2, ())
    return [
        Open(2 * sequence_id, sequence_id, options),
        Start(
            2 * sequence_id + 1, sequence_id, 0, [first_token, 6], 0, 1, lambda seq, tail: VerifyJob(seq, tail, check)
        ),
    ]


def verify_zeros(sequence_id: int, num_blocks: int) -> list[Command]:
    opening, start = verify(sequence_id)
    assert isinstance(start, Start)
    return [opening, replace(start, tail=[0] * 16 * num_blocks)]


async def test_whom_the_peer_handed_over_is_in_the_same_step(with_peer: Engine, tmp_path: Path) -> None:
    answered: asyncio.Queue[tuple[list[Answer], int]] = asyncio.Queue()
    session = with_peer.worker.open_session(lambda answers, steps: answered.put_nowait((answers, steps)))
    hand_over(tmp_path / "lock", 2)
    with_peer.worker.submit(session, verify(1))
    await with_peer.worker.call(lambda: None)
    with_peer.worker.submit(session, verify(2))
    answers, steps = await answered.get()
    assert (len(answers), steps) == (4, 1)


async def test_nobody_is_waited_for_when_all_have_come(with_peer: Engine, tmp_path: Path) -> None:
    answered: asyncio.Queue[tuple[list[Answer], int]] = asyncio.Queue()
    session = with_peer.worker.open_session(lambda answers, steps: answered.put_nowait((answers, steps)))
    hand_over(tmp_path / "lock", 1)
    with_peer.worker.submit(session, verify(1))
    async with asyncio.timeout(5):
        await answered.get()


@pytest.mark.parametrize("is_another_client", [False, True])
async def test_who_only_reads_for_requests_to_come_gives_way(is_another_client: bool) -> None:
    """A coordinator counts a released sequence's blocks as free, and has admitted another one."""
    answers: asyncio.Queue[Answer] = asyncio.Queue()

    def deliver(delivered: list[Answer], steps: int) -> None:
        for each in delivered:
            answers.put_nowait(each)

    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.start(device_thread)
        sessions = [engine.worker.open_session(deliver) for _ in range(2)]
        await engine.worker.call(lambda: engine.pool.allocate(engine.pool.num_blocks - 7))
        engine.worker.submit(sessions[0], [*verify_zeros(1, 3), *verify_zeros(3, 1)])
        async with asyncio.timeout(20):
            while (await answers.get()).command_id != 7:
                pass

        def leave_and_come() -> None:
            sessions[0].execute(Release(4, 1, 48, [1] * 20))
            assert sessions[0].states[0].job is not None
            for command in verify_zeros(4 if is_another_client else 5, 5):
                sessions[is_another_client].execute(command)
            # Who waits for its next round is not preempted for it.
            assert sessions[0].states[0].sequence.length == 16

        try:
            await engine.worker.call(leave_and_come)
            async with asyncio.timeout(20):
                while (answer := await answers.get()).command_id not in (9, 11):
                    pass
        finally:
            engine.worker.stop()
    assert not isinstance(answer.result, PacelineError), answer.result


async def test_a_client_that_leaves_ends_no_worker_whoever_would_need_blocks() -> None:
    """A fork that loses its parent begins anew with what its client has sent, while the others are released."""
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker.start(device_thread)
        session = engine.worker.open_session(lambda answers, steps: None)
        await engine.worker.call(lambda: engine.pool.allocate(engine.pool.num_blocks - 8))

        def come_and_leave() -> None:
            opening, start = verify_zeros(2, 7)
            commands = [*verify_zeros(1, 3), opening, Fork(50, 2, 1, 0), Truncate(51, 2, 0), start]
            for command in [*commands, verify_zeros(3, 1)[0], Release(52, 3, 0, [9] * 32)]:
                session.execute(command)
            assert session.states[2].is_leaving
            session.close()

        try:
            await engine.worker.call(come_and_leave)
            assert engine.pool.num_free == 8
        finally:
            engine.worker.stop()
        await engine.worker.wait_stopped()
