"""Processes die; outputs do not change."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from paceline.client import AsyncClient, Completion
from paceline.rpc.channel import open_channel
from paceline.sampling import SamplingParams, SpeculationParams
from paceline.v1 import draft_pb2_grpc, model_pb2, target_pb2_grpc
from tests.conftest import TINY
from tests.services import Service, Trio, running, start_service, start_trio

PROMPT = [3, 14, 15, 92, 65]
LONG = SamplingParams(max_tokens=300, ignore_eos=True)
SPECULATIVE = SpeculationParams(num_draft_tokens=4)


async def undisturbed(trio: Trio) -> Completion:
    async with AsyncClient(trio.address) as client:
        return await client.complete(PROMPT, LONG, SPECULATIVE)


async def generate_while_dying(trio: Trio, victim: Service, stack: contextlib.ExitStack) -> Completion:
    """Kills the victim once some tokens are out, and starts it again at the same address."""
    completion = Completion()
    async with AsyncClient(trio.address) as client:
        async for piece in client.stream(PROMPT, LONG, SPECULATIVE):
            alive_before = len(completion.token_ids) < 40
            completion.add(piece)
            if alive_before and len(completion.token_ids) >= 40:
                victim.kill()
                folder = Path(victim.address.removeprefix("unix:")).parent
                again = await asyncio.to_thread(start_service, victim.module, folder, *TINY, address=victim.address)
                stack.enter_context(running(again))
    return completion


async def free_and_total_blocks(service: Service) -> tuple[int, int]:
    stub = draft_pb2_grpc.DraftStub if service.module == "draft_server" else target_pb2_grpc.TargetStub
    async with open_channel(service.address) as channel:
        card = await stub(channel).Describe(model_pb2.DescribeModelRequest())
    return card.free_blocks, card.total_blocks


async def wait_until_free(service: Service) -> None:
    """Blocks are freed at the next engine step after a stream's end."""
    for _ in range(200):
        free, total = await free_and_total_blocks(service)
        if free == total:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{service.module}: {free} of {total} blocks are free")


@pytest.mark.parametrize("role", ["draft", "target"])
async def test_a_model_server_that_dies_and_returns_changes_no_output(role: str, tmp_path: Path) -> None:
    with start_trio(tmp_path, TINY, TINY) as trio, contextlib.ExitStack() as stack:
        expected = await undisturbed(trio)
        disturbed = await generate_while_dying(trio, getattr(trio, role), stack)
        assert disturbed.token_ids == expected.token_ids
        assert disturbed.text == expected.text
        assert disturbed.finish is not None


async def test_without_its_draft_server_a_generation_goes_on_alone(tmp_path: Path) -> None:
    with start_trio(tmp_path, TINY, TINY) as trio:
        expected = await undisturbed(trio)
        trio.draft.kill()
        alone = await undisturbed(trio)
        assert alone.token_ids == expected.token_ids
        assert set(alone.origins) == {"T"}


async def test_a_dead_coordinator_leaks_no_block(tmp_path: Path) -> None:
    with start_trio(tmp_path, TINY, TINY) as trio:
        async with AsyncClient(trio.address) as client:
            pieces: AsyncIterator[object] = client.stream(PROMPT, LONG, SPECULATIVE)
            await anext(pieces)
            await anext(pieces)
            trio.coordinator.kill()
            with contextlib.suppress(Exception):
                async for _ in pieces:
                    pass
        await wait_until_free(trio.draft)
        await wait_until_free(trio.target)


async def test_sigterm_lets_running_generations_end(tmp_path: Path) -> None:
    with start_trio(tmp_path, TINY, TINY) as trio:
        expected = await undisturbed(trio)
        async with AsyncClient(trio.address) as client:
            running_generation = asyncio.create_task(client.complete(PROMPT, LONG, SPECULATIVE))
            await asyncio.sleep(0.3)
            status = await asyncio.to_thread(trio.coordinator.stop)
            assert (await running_generation).token_ids == expected.token_ids
        assert status == 0
        assert await asyncio.to_thread(trio.draft.stop) == 0
        assert await asyncio.to_thread(trio.target.stop) == 0
