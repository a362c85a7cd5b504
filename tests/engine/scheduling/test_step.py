"""A job that fails in the engine fails alone.

The fault is put in: no request is known that makes the engine fail.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cache.state_pool import StatePool
from paceline.engine.sampling.specs import Sample
from paceline.engine.scheduling.commands import Answer, Start, Truncate
from paceline.engine.scheduling.job import Job
from paceline.engine.scheduling.step import StepRunner, run_step
from paceline.errors import DeviceLost, InternalError, InvalidArgument, Unavailable
from paceline.sampling_params import SamplingParams
from tests.engine.scheduling.test_session import ReadingJob
from tests.engine.scheduling.test_worker import build_tiny, verify

Shares = list[tuple[Job, int]]
# `verify` answers command 2 n + 1 for sequence n.
CULPRIT, OTHERS = 1, (0, 2)
# The prompt of sequence n begins with this plus n.
FIRST_TOKEN = 5


class FaultyRunner:
    """A real runner, in front of which `fault` may raise."""

    def __init__(self, runner: StepRunner, fault: Callable[[Shares], None]) -> None:
        self._runner = runner
        self._fault = fault
        self.sizes: list[int] = []

    def step(self, shares: Shares) -> None:
        self.sizes.append(len(shares))
        self._fault(shares)
        self._runner.step(shares)


async def answers_of_three(
    fault: Callable[[Shares], None], repeats: bool = False
) -> tuple[dict[int, Any], FaultyRunner]:
    """Three sequences' Verify in one step: results by sequence. `repeats`: of the same commands, sent again."""
    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        runner = FaultyRunner(engine.worker._runner, fault)
        engine.worker._runner = runner
        answered: asyncio.Queue[list[Answer]] = asyncio.Queue()
        session = engine.worker.open_session(lambda answers, steps: answered.put_nowait(answers))
        commands = [command for sequence_id in range(3) for command in verify(sequence_id, FIRST_TOKEN + sequence_id)]
        engine.worker.submit(session, commands)
        engine.worker.start(device_thread)
        results = await next_three(answered)
        if repeats:
            cleared = [Truncate(0, sequence_id, 0) for sequence_id in range(3)]
            again = [command for command in commands if isinstance(command, Start)]
            engine.worker.submit(session, [*cleared, *again])
            results = await next_three(answered)
        engine.worker.stop()
        return results, runner


async def next_three(answered: asyncio.Queue[list[Answer]]) -> dict[int, Any]:
    results: dict[int, Any] = {}
    while len(results) < 3:
        for answer in await asyncio.wait_for(answered.get(), 20):
            if answer.command_id % 2:
                results[answer.command_id // 2] = answer.result
    return results


async def test_only_the_culprit_fails() -> None:
    undisturbed, _ = await answers_of_three(lambda shares: None)

    def fault(shares: Shares) -> None:
        if any(job.pending[0] == FIRST_TOKEN + CULPRIT for job, _ in shares):
            raise ValueError("a fault of this job")

    results, runner = await answers_of_three(fault)
    assert isinstance(results[CULPRIT], InternalError)
    assert [results[each].tokens for each in OTHERS] == [undisturbed[each].tokens for each in OTHERS]
    assert runner.sizes == [3, 1, 1, 1]


@pytest.mark.parametrize("error", [InvalidArgument("format", "is at fault"), ValueError("a fault of this job")])
async def test_a_job_that_fails_at_its_samples_fails_alone_and_nobody_is_fed_again(error: Exception) -> None:
    undisturbed, _ = await answers_of_three(lambda shares: None)

    def absorb(samples: list[Sample]) -> None:
        raise error

    def fault(shares: Shares) -> None:
        shares[CULPRIT][0].absorb = absorb  # type: ignore[method-assign]

    results, runner = await answers_of_three(fault)
    assert type(results[CULPRIT]) is (InvalidArgument if isinstance(error, InvalidArgument) else InternalError)
    assert [results[each].tokens for each in OTHERS] == [undisturbed[each].tokens for each in OTHERS]
    assert runner.sizes == [3]


async def test_after_a_failed_step_jobs_without_their_states_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed, _ = await answers_of_three(lambda shares: None)
    lost: list[Sequence] = []
    monkeypatch.setattr(Sequence, "is_intact", property(lambda sequence: sequence not in lost))

    def fault(shares: Shares) -> None:
        lost[:] = [job.sequence for job, _ in shares] if len(shares) > 1 else []
        if any(job.pending[0] == FIRST_TOKEN + CULPRIT for job, _ in shares):
            raise ValueError("in the forward pass")

    results, runner = await answers_of_three(fault, repeats=True)
    assert isinstance(results[CULPRIT], InternalError)
    assert [results[each].tokens for each in OTHERS] == [undisturbed[each].tokens for each in OTHERS]
    assert runner.sizes == [3, 1, 1, 1]


async def test_a_fault_that_does_not_come_again_fails_nobody() -> None:
    faults = [ValueError("once")]

    def fault(shares: Shares) -> None:
        if faults:
            raise faults.pop()

    results, _ = await answers_of_three(fault)
    assert [len(results[each].tokens) for each in range(3)] == [1, 1, 1]


async def test_a_job_whose_rows_were_fed_before_the_fault_is_to_be_repeated() -> None:
    def fault(shares: Shares) -> None:
        if len(shares) > 1:
            job, num_tokens = shares[0]
            del job.pending[:num_tokens]
            raise ValueError("in the middle")

    results, _ = await answers_of_three(fault)
    assert sorted(type(result) is Unavailable for result in results.values()) == [False, False, True]


def test_jobs_whose_states_a_failed_step_may_have_changed_are_not_run_alone() -> None:
    pool = BlockPool(8, 16, lambda sources, destinations: None, states=StatePool(2))
    sequences = [open_sequence(SequenceOptions(SamplingParams(seed=0), 1, ()), pool) for _ in range(2)]
    shares: Shares = []
    for sequence in sequences:
        sequence.reserve(3)
        shares.append((ReadingJob(sequence, [1, 2, 3]), 3))

    class FailingRunner:
        def step(self, shares: Shares) -> None:
            for job, num_tokens in shares:
                job.sequence.plan_state(num_tokens)
            raise ValueError("in the forward pass")

    failed = run_step(FailingRunner(), shares)
    assert [type(failed[job]) for job, _ in shares] == [Unavailable, Unavailable]


async def test_a_lost_device_ends_the_worker() -> None:
    def fault(shares: Shares) -> None:
        raise DeviceLost("gone")

    with ThreadPoolExecutor(max_workers=1) as device_thread:
        engine = await build_tiny(device_thread)
        engine.worker._runner = FaultyRunner(engine.worker._runner, fault)
        session = engine.worker.open_session(lambda answers, steps: None)
        engine.worker.submit(session, verify(0))
        engine.worker.start(device_thread)
        with pytest.raises(DeviceLost):
            await engine.worker.wait_stopped()
