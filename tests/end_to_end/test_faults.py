"""Processes die, or are stopped (SIGSTOP) as by a paused machine; outputs do not change."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.drafters.deadline import MIN_TIMEOUT_S
from paceline.client import AsyncClient, Completion
from paceline.engine.scheduling.compute_lock import TIMEOUT_S
from paceline.errors import Unavailable, Unreachable
from paceline.rpc.heartbeat import STALL_S
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.conftest import TINY
from tests.services import Service, Trio, restart, running, start_service, start_trio, wait_until_free

pytestmark = pytest.mark.slow

PROMPTS = [[3, 14, 15, 92, 65, number] for number in range(5)]
GREEDY = SamplingParams(max_tokens=200, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=200, temperature=0.8, seed=5, ignore_eos=True)
BEAMS = SamplingParams(max_tokens=200, beams=4, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False, rule=Rule.MATCH)
SPECULATIVE = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH)
# A pause that nothing should take for a death, and one that everything must. In the short one a generation can wait for
# its draft, and then for the compute lock, if the draft server was stopped while it held it.
SHORT_S, LONG_S = MIN_TIMEOUT_S + TIMEOUT_S + 1.5, STALL_S + 5.0


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trio, contextlib.ExitStack]]:
    with start_trio(tmp_path_factory.mktemp("faults"), TINY, TINY) as trio, contextlib.ExitStack() as stack:
        yield trio, stack


@pytest.fixture
def trio(processes: tuple[Trio, contextlib.ExitStack]) -> Trio:
    """All three alive: whom the test before killed is started again."""
    trio, stack = processes
    for role in ("draft", "target", "coordinator"):
        service = getattr(trio, role)
        if service.process.poll() is not None:
            setattr(trio, role, again := restart(service))
            stack.enter_context(running(again))
    return trio


async def complete_all(
    trio: Trio, sampling: SamplingParams, speculation: SpeculationParams = SPECULATIVE
) -> list[Completion]:
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(prompt, sampling, speculation) for prompt in PROMPTS))


async def follow(
    client: AsyncClient, completion: Completion, prompt: list[int], sampling: SamplingParams, way: SpeculationParams
) -> None:
    async for chunk in client.stream(prompt, sampling, way):
        completion.add(chunk)


def follow_all(
    client: AsyncClient,
    completions: list[Completion],
    sampling: SamplingParams = GREEDY,
    way: SpeculationParams = SPECULATIVE,
) -> list[asyncio.Task[None]]:
    pairs = zip(completions, PROMPTS, strict=True)
    return [asyncio.create_task(follow(client, completion, prompt, sampling, way)) for completion, prompt in pairs]


def contents(completions: list[Completion]) -> list[tuple[list[int], str]]:
    return [(completion.token_ids, completion.text) for completion in completions]


async def wait_until_under_way(completions: list[Completion], num_tokens: int) -> None:
    while not all(len(completion.token_ids) >= num_tokens for completion in completions):
        await asyncio.sleep(0.01)
    assert all(completion.finish is None for completion in completions), "too late to disturb anything"


@pytest.mark.parametrize(
    ("role", "sampling", "way"),
    [
        pytest.param("draft", SAMPLED, SPECULATIVE, id="draft, sampled by match"),
        pytest.param("target", GREEDY, SPECULATIVE, id="target, greedy"),
        pytest.param("draft", GREEDY, SPECULATIVE, id="draft, greedy"),
        pytest.param("target", SAMPLED, SPECULATIVE, id="target, sampled by match"),
        pytest.param("target", SAMPLED, PLAIN, id="target that goes on by itself"),
    ],
)
async def test_a_model_server_that_dies_and_returns_changes_no_output(
    role: str,
    sampling: SamplingParams,
    way: SpeculationParams,
    trio: Trio,
    processes: tuple[Trio, contextlib.ExitStack],
) -> None:
    """Nor one of a beam search: a target that comes back reads each hypothesis anew, and without drafts it goes on."""
    expected = contents(await complete_all(trio, sampling, PLAIN))
    disturbed = [Completion() for _ in PROMPTS]
    victim = getattr(trio, role)
    async with AsyncClient(trio.address) as client:
        best = await client.complete(PROMPTS[0], BEAMS, PLAIN)
        searching = [asyncio.create_task(client.complete(PROMPTS[0], BEAMS, way)) for way in (PLAIN, SPECULATIVE)]
        following = follow_all(client, disturbed, sampling, way)
        await wait_until_under_way(disturbed, 20)
        assert (await client.describe()).running == len(disturbed) + len(searching), "too late to disturb anything"
        victim.kill()
        if role == "draft":
            alone = await complete_all(trio, sampling)
            assert contents(alone) == expected
            assert all(completion.finish.timing.draft_ms == 0 for completion in alone)
        setattr(trio, role, again := await asyncio.to_thread(restart, victim))
        processes[1].enter_context(running(again))
        await asyncio.gather(*following)
        found = await asyncio.gather(*searching)
        for service in (trio.target, trio.draft):
            await wait_until_free(service)
    assert contents(disturbed) == expected
    assert all(completion.finish is not None for completion in disturbed)
    assert [each.token_ids for each in found] == [best.token_ids] * len(found)
    await wait_until_drafting(trio)


async def wait_until_drafting(trio: Trio) -> None:
    async with AsyncClient(trio.address) as client:
        for _ in range(100):
            done = await client.complete(PROMPTS[0], SamplingParams(max_tokens=20, ignore_eos=True), SPECULATIVE)
            if done.finish.timing.draft_ms > 0:
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the draft server is back, and nothing is drafted")


@contextlib.asynccontextmanager
async def stopped(service: Service, seconds: float) -> AsyncIterator[None]:
    """Stops the process now, and lets it go on after `seconds`."""

    async def pause() -> None:
        service.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            service.process.send_signal(signal.SIGCONT)

    pausing = asyncio.create_task(pause())
    yield
    await pausing


async def stop_during(
    trio: Trio, role: str, seconds: float, sampling: SamplingParams = GREEDY
) -> tuple[list[Completion], bool]:
    """Generations during which `role` is stopped, and whether they ended before it went on."""
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = follow_all(client, completions, sampling)
        await wait_until_under_way(completions, 20)
        async with stopped(getattr(trio, role), seconds):
            done, _ = await asyncio.wait(following, timeout=seconds - 0.5)
            ended_before = len(done) == len(following)
        await asyncio.gather(*following)
    return completions, ended_before


async def test_a_stopped_draft_holds_up_no_generation_for_long(trio: Trio) -> None:
    # So few tokens that a busy machine can end them too; after STALL_S the draft server would be taken for dead.
    few = replace(GREEDY, max_tokens=60)
    expected = contents(await complete_all(trio, few, PLAIN))
    await complete_all(trio, few)
    completions, ended_before = await stop_during(trio, "draft", STALL_S - 1.0, few)
    assert contents(completions) == expected
    assert ended_before


@pytest.mark.parametrize(("role", "seconds"), [("target", SHORT_S), ("target", LONG_S), ("draft", LONG_S)])
async def test_a_stopped_server_changes_no_token(role: str, seconds: float, trio: Trio) -> None:
    expected = contents(await complete_all(trio, GREEDY, PLAIN))
    completions, _ = await stop_during(trio, role, seconds)
    assert contents(completions) == expected
    assert contents(await complete_all(trio, GREEDY)) == expected


async def test_a_dead_coordinator_leaks_no_block(trio: Trio) -> None:
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = follow_all(client, completions)
        await wait_until_under_way(completions, 20)
        trio.coordinator.kill()
        ends = await asyncio.gather(*following, return_exceptions=True)
    assert all(isinstance(end, Unavailable) for end in ends)
    await wait_until_free(trio.draft)
    await wait_until_free(trio.target)


async def test_a_target_gone_for_too_long_is_named_and_nobody_is_left_waiting(trio: Trio, tmp_path: Path) -> None:
    addresses = ("--draft", trio.draft.address, "--target", trio.target.address)
    impatient = start_service("coordinator", tmp_path, *addresses, "--target-timeout", "1")
    with running(impatient):
        async with AsyncClient(impatient.address) as client:
            trio.target.kill()
            calls = [client.complete(prompt, GREEDY) for prompt in PROMPTS]
            ends = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(end, Unavailable) for end in ends)
    assert all(f"the target server at {trio.target.address}" in str(end) for end in ends)


async def test_a_request_that_comes_as_the_coordinator_ends_is_one_to_repeat(trio: Trio) -> None:
    """Of these some are in the coordinator's hands, some in gRPC's, which cancels them, and the last find nobody."""
    ends: list[Completion | BaseException] = []

    async def ask(number: int) -> None:
        async with AsyncClient(trio.address) as client:
            brief = SamplingParams(max_tokens=2, ignore_eos=True)
            ends.extend(await asyncio.gather(client.complete([3, number], brief, PLAIN), return_exceptions=True))

    asking = [asyncio.create_task(ask(number)) for number in range(1, 33)]
    while not ends:
        await asyncio.sleep(0)
    assert await asyncio.to_thread(trio.coordinator.stop) == 0
    await asyncio.gather(*asking)
    assert {type(end) for end in ends} <= {Completion, Unavailable, Unreachable}
    assert len(ends) == 32


async def test_sigterm_lets_running_generations_end(trio: Trio) -> None:
    expected = contents(await complete_all(trio, GREEDY))
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = follow_all(client, completions)
        await wait_until_under_way(completions, 20)
        status = await asyncio.to_thread(trio.coordinator.stop)
        await asyncio.gather(*following)
    assert contents(completions) == expected
    assert status == 0
    assert await asyncio.to_thread(trio.draft.stop) == 0
    assert await asyncio.to_thread(trio.target.stop) == 0
