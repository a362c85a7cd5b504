"""Processes die; outputs do not change."""

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.client import AsyncClient, Completion
from paceline.errors import Unavailable, Unreachable
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, Rule, SpeculationParams
from tests.conftest import TINY
from tests.services import Trio, free_and_total_blocks, restart, running, start_service, start_trio, wait_until_free

PROMPTS = [[3, 14, 15, 92, 65, number] for number in range(8)]
GREEDY = SamplingParams(max_tokens=300, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=300, temperature=0.8, seed=5, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False, rule=Rule.MATCH)
SPECULATIVE = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH)


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


async def follow(client: AsyncClient, completion: Completion, prompt: list[int], sampling: SamplingParams) -> None:
    async for piece in client.stream(prompt, sampling, SPECULATIVE):
        completion.add(piece)


def contents(completions: list[Completion]) -> list[tuple[list[int], str]]:
    return [(completion.token_ids, completion.text) for completion in completions]


async def wait_until_under_way(completions: list[Completion], num_tokens: int) -> None:
    while not all(len(completion.token_ids) >= num_tokens for completion in completions):
        await asyncio.sleep(0.01)
    assert all(completion.finish is None for completion in completions), "too late to disturb anything"


@pytest.mark.parametrize(
    ("role", "sampling"),
    [
        pytest.param("draft", SAMPLED, id="draft, sampled by match"),
        pytest.param("target", GREEDY, id="target, greedy"),
        pytest.param("draft", GREEDY, id="draft, greedy", marks=pytest.mark.slow),
        pytest.param("target", SAMPLED, id="target, sampled by match", marks=pytest.mark.slow),
    ],
)
async def test_a_model_server_that_dies_and_returns_changes_no_output(
    role: str, sampling: SamplingParams, trio: Trio, processes: tuple[Trio, contextlib.ExitStack]
) -> None:
    expected = contents(await complete_all(trio, sampling, PLAIN))
    disturbed = [Completion() for _ in PROMPTS]
    victim = getattr(trio, role)
    async with AsyncClient(trio.address) as client:
        following = [
            asyncio.create_task(follow(client, completion, prompt, sampling))
            for completion, prompt in zip(disturbed, PROMPTS, strict=True)
        ]
        await wait_until_under_way(disturbed, 20)
        victim.kill()
        setattr(trio, role, again := await asyncio.to_thread(restart, victim))
        processes[1].enter_context(running(again))
        await asyncio.gather(*following)
    assert contents(disturbed) == expected
    assert all(completion.finish is not None for completion in disturbed)


# Blocks in use that only a search under way takes.
@pytest.mark.parametrize(("victim", "least_used"), [("target", 40), ("draft", 8)])
async def test_a_beam_search_outlives_a_model_server(
    trio: Trio, processes: tuple[Trio, contextlib.ExitStack], victim: str, least_used: int
) -> None:
    """Its hypotheses are the coordinator's: a target that comes back reads each anew, and without drafts it goes on."""
    sampling = SamplingParams(max_tokens=300, beams=4, ignore_eos=True)
    drafted = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
    async with AsyncClient(trio.address) as client:
        expected = await client.complete(PROMPTS[0], sampling, PLAIN)
        searching = [asyncio.create_task(client.complete(PROMPTS[0], sampling, way)) for way in (PLAIN, drafted)]
        free = total = 0
        while total - free < least_used:
            assert not searching[1].done(), "too late to disturb anything"
            await asyncio.sleep(0.01)
            free, total = await free_and_total_blocks(getattr(trio, victim))
        getattr(trio, victim).kill()
        setattr(trio, victim, await asyncio.to_thread(restart, getattr(trio, victim)))
        processes[1].enter_context(running(getattr(trio, victim)))
        done = await asyncio.gather(*searching)
        for service in (trio.target, trio.draft):
            await wait_until_free(service)
    assert [each.token_ids for each in done] == [expected.token_ids] * 2


async def test_speculation_comes_back_with_the_draft_server(trio: Trio) -> None:
    expected = contents(await complete_all(trio, GREEDY))
    trio.draft.kill()
    alone = await complete_all(trio, GREEDY)
    assert contents(alone) == expected
    assert all(completion.finish.timing.draft_ms == 0 for completion in alone)
    again = await asyncio.to_thread(restart, trio.draft)
    with running(again):
        for _ in range(100):
            later = await complete_all(trio, GREEDY)
            assert contents(later) == expected
            if all(completion.finish.timing.draft_ms > 0 for completion in later):
                return
            await asyncio.sleep(0.1)
    raise AssertionError("the draft server is back, and nothing is drafted")


async def test_a_dead_coordinator_leaks_no_block(trio: Trio) -> None:
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = [
            asyncio.create_task(follow(client, completion, prompt, GREEDY))
            for completion, prompt in zip(completions, PROMPTS, strict=True)
        ]
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

    asking = [asyncio.create_task(ask(number)) for number in range(1, 65)]
    while not ends:
        await asyncio.sleep(0)
    assert await asyncio.to_thread(trio.coordinator.stop) == 0
    await asyncio.gather(*asking)
    assert {type(end) for end in ends} <= {Completion, Unavailable, Unreachable}
    assert len(ends) == 64


async def test_sigterm_lets_running_generations_end(trio: Trio) -> None:
    expected = contents(await complete_all(trio, GREEDY))
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = [
            asyncio.create_task(follow(client, completion, prompt, GREEDY))
            for completion, prompt in zip(completions, PROMPTS, strict=True)
        ]
        await wait_until_under_way(completions, 20)
        status = await asyncio.to_thread(trio.coordinator.stop)
        await asyncio.gather(*following)
    assert contents(completions) == expected
    assert status == 0
    assert await asyncio.to_thread(trio.draft.stop) == 0
    assert await asyncio.to_thread(trio.target.stop) == 0
