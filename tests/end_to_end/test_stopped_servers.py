"""A model server that is stopped (SIGSTOP), as by a paused machine: what is waited for, and what is not."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from coordinator.drafters.deadline import MIN_TIMEOUT_S
from coordinator.remote.link import STALL_S
from paceline.client import AsyncClient, Completion
from paceline.engine.scheduling.compute_lock import TIMEOUT_S
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, SpeculationParams
from tests.conftest import TINY
from tests.services import Service, Trio, start_trio

PROMPTS = [[3, 14, 15, 92, 65, number] for number in range(4)]
GREEDY = SamplingParams(max_tokens=200, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False)
SPECULATIVE = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
# A pause that nothing should take for a death, and one that everything must. In the short one a generation can wait for
# its draft, and then for the compute lock, if the draft server was stopped while it held it.
SHORT_S, LONG_S = MIN_TIMEOUT_S + TIMEOUT_S + 1.5, STALL_S + 5.0


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    with start_trio(tmp_path_factory.mktemp("stopped"), TINY, TINY) as trio:
        yield trio


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


async def follow(client: AsyncClient, completion: Completion, prompt: list[int]) -> None:
    async for piece in client.stream(prompt, GREEDY, SPECULATIVE):
        completion.add(piece)


async def complete_all(trio: Trio, speculation: SpeculationParams) -> list[list[int]]:
    async with AsyncClient(trio.address) as client:
        found = await asyncio.gather(*(client.complete(prompt, GREEDY, speculation) for prompt in PROMPTS))
    return [completion.token_ids for completion in found]


async def disturbed(trio: Trio, role: str, seconds: float) -> tuple[list[list[int]], bool]:
    """Outputs of generations during which `role` is stopped, and whether they ended before it went on."""
    completions = [Completion() for _ in PROMPTS]
    async with AsyncClient(trio.address) as client:
        following = [
            asyncio.create_task(follow(client, completion, prompt))
            for completion, prompt in zip(completions, PROMPTS, strict=True)
        ]
        while not all(len(completion.token_ids) >= 20 for completion in completions):
            await asyncio.sleep(0.01)
        assert all(completion.finish is None for completion in completions), "too late to disturb anything"
        async with stopped(getattr(trio, role), seconds):
            done, _ = await asyncio.wait(following, timeout=seconds - 0.5)
            ended_before = len(done) == len(following)
        await asyncio.gather(*following)
    return [completion.token_ids for completion in completions], ended_before


async def test_a_stopped_draft_holds_up_no_generation_for_long(trio: Trio) -> None:
    expected = await complete_all(trio, PLAIN)
    await complete_all(trio, SPECULATIVE)
    # So long that a busy machine can end them too; after STALL_S the draft server would be taken for dead.
    outputs, ended_before = await disturbed(trio, "draft", STALL_S - 1.0)
    assert outputs == expected
    assert ended_before


@pytest.mark.slow
@pytest.mark.parametrize(("role", "seconds"), [("target", SHORT_S), ("target", LONG_S), ("draft", LONG_S)])
async def test_a_stopped_server_changes_no_token(role: str, seconds: float, trio: Trio) -> None:
    expected = await complete_all(trio, PLAIN)
    outputs, _ = await disturbed(trio, role, seconds)
    assert outputs == expected
    assert await complete_all(trio, SPECULATIVE) == expected
