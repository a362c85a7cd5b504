"""A draft server in the target server's process, through the real services: no token and no block depends on where it is."""

import asyncio
import contextlib
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, Rule, SpeculationParams
from tests.conftest import PARALLEL_DRAFT, TINY, UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.services import restart, running, start_service, wait_until_free

CHECKED = ("--check-integrity",)
# Target and draft: alike but for rounding, unlike, and with all drafts from one forward pass.
PAIRS = {
    "alike": (TINY, (*TINY, "--quantization", "int8")),
    "unlike": ((*UNLIKE_TARGET, *CHECKED), (*UNLIKE_DRAFT, *CHECKED)),
    "parallel": ((*UNLIKE_TARGET, *CHECKED), (*PARALLEL_DRAFT, *CHECKED)),
}
SAMPLINGS = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=40, temperature=0.8, seed=1),
    SamplingParams(max_tokens=40, temperature=0.8, seed=2, ignore_eos=True, repetition_penalty=1.1),
]
WAYS = [
    *(SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=each) for each in (1, 2, 5, Bounds(0, 8))),
    SpeculationParams(),
    SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=4),
    SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.REJECTION),
]


def colocated(target: tuple[str, ...], draft: tuple[str, ...], folder: Path) -> tuple[str, ...]:
    """The flags of a target server with the draft server in its process."""
    lock = ("--compute-lock-file", f"{folder}/compute.lock")
    return (*lock, *target, "draft_server", "--listen", f"unix:{folder}/draft.sock", *lock, *draft)


@pytest.fixture(scope="module", params=PAIRS)
def addresses(request: pytest.FixtureRequest, host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a coordinator with a colocated draft, of one with a separate draft, and of the colocated servers."""
    folder, (target, draft) = Path(tmp_path_factory.mktemp("colocated")), PAIRS[request.param]
    found = {each: f"unix:{folder}/{each}.sock" for each in ("target", "draft")}
    host.start("target_server", "--listen", found["target"], *colocated(target, draft, folder))
    found["colocated"] = host.start("coordinator", "--draft", found["draft"], "--target", found["target"]).address
    return {**found, "separate": host.trio(target, draft).address}


async def answers(client: AsyncClient, way: SpeculationParams) -> list[list[int]]:
    """Returns the tokens of each sampling."""
    return [(await client.complete([11, 12, 13, 14], each, way)).token_ids for each in SAMPLINGS]


async def test_no_token_depends_on_where_the_draft_model_is(addresses: dict[str, str]) -> None:
    async with AsyncClient(addresses["colocated"]) as client, AsyncClient(addresses["separate"]) as separate:
        plain = await answers(client, SpeculationParams(enabled=False))
        alone = [await answers(client, way) for way in WAYS]
        assert alone[:-1] == [plain] * (len(WAYS) - 1)
        assert alone[-1] == await answers(separate, WAYS[-1])
        assert await asyncio.gather(*(answers(client, way) for way in WAYS)) == alone
    await wait_until_all_is_free(addresses)


async def test_a_generation_that_is_cut_off_frees_what_was_to_follow(addresses: dict[str, str]) -> None:
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    async with AsyncClient(addresses["colocated"]) as client:
        for num_chunks in range(1, 12):
            chunks = client.stream([11, 12, 13, num_chunks], sampling, WAYS[2])
            for _ in range(num_chunks):
                await anext(chunks)
            await chunks.aclose()
    await wait_until_all_is_free(addresses)


@pytest.mark.slow
async def test_no_token_is_lost_when_the_process_dies(tmp_path: Path) -> None:
    """Both models at once; they come back in one process too."""
    sampling, tokens = SamplingParams(max_tokens=400, ignore_eos=True), list[int]()
    with contextlib.ExitStack() as stack:
        server = start_service("target_server", tmp_path, *colocated(*PAIRS["unlike"], tmp_path))
        stack.enter_context(running(server))
        addresses = ("--draft", f"unix:{tmp_path}/draft.sock", "--target", server.address)
        coordinator = start_service("coordinator", tmp_path, *addresses)
        stack.enter_context(running(coordinator))
        async with AsyncClient(coordinator.address) as client:
            plain = await client.complete([1, 2, 3], sampling, SpeculationParams(enabled=False))
            async for chunk in client.stream([1, 2, 3], sampling, WAYS[2]):
                before, tokens = len(tokens), tokens + chunk.token_ids
                if before < 100 <= len(tokens):
                    server.kill()
                    server = await asyncio.to_thread(restart, server)
                    stack.enter_context(running(server))
            assert tokens == plain.token_ids
        assert await asyncio.to_thread(coordinator.stop) == 0
        assert await asyncio.to_thread(server.stop) == 0


async def wait_until_all_is_free(addresses: dict[str, str]) -> None:
    for role in ("target", "draft"):
        await wait_until_free(SimpleNamespace(address=addresses[role], module=role))  # type: ignore[arg-type]
