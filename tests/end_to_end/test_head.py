"""A target that drafts for itself, through the real services: no token depends on its draft head."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, Rule, SpeculationParams
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.draft_heads import WRITERS, write_head
from tests.hosted import Host
from tests.services import restart, running, start_service, wait_until_free

CHECKED = ("--check-integrity",)
PROMPT = [11, 12, 13, 14]
BLOCK_SIZE = 16
SAMPLINGS = [
    SamplingParams(max_tokens=60, ignore_eos=True),
    SamplingParams(max_tokens=60, temperature=0.8, seed=1),
    SamplingParams(max_tokens=60, temperature=0.8, seed=2, ignore_eos=True, repetition_penalty=1.1, top_p=0.9),
    SamplingParams(max_tokens=1, temperature=0.8, seed=3),
    SamplingParams(max_tokens=40, min_tokens=30, temperature=1.5, seed=4, logprobs=2),
]
HEAD = [SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=each) for each in (1, 2, 5, 16, Bounds(0, 8))]
WAYS = [
    *HEAD,
    SpeculationParams(),
    SpeculationParams(num_speculative_tokens=Bounds(2, 5)),
    SpeculationParams(num_speculative_tokens=3),
]


@pytest.fixture(scope="module")
def addresses(host: Host, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Of a coordinator whose target has a head, with and without a draft server, and of the servers."""
    folder = Path(tmp_path_factory.mktemp("head"))
    write_head(folder / "head", model="tiny-32-a")
    found = {each: f"unix:{folder}/{each}.sock" for each in ("target", "draft")}
    host.start("target_server", "--listen", found["target"], *UNLIKE_TARGET, *CHECKED, "--draft-head", f"{folder}/head")
    host.start("draft_server", "--listen", found["draft"], *UNLIKE_DRAFT, *CHECKED)
    found["alone"] = host.start("coordinator", "--draft", "none", "--target", found["target"]).address
    found["both"] = host.start("coordinator", "--draft", found["draft"], "--target", found["target"]).address
    return found


async def answers(client: AsyncClient, way: SpeculationParams) -> list[list[int]]:
    """Returns the tokens of each sampling."""
    return [(await client.complete(PROMPT, each, way)).token_ids for each in SAMPLINGS]


@pytest.mark.parametrize("coordinator", ["alone", "both"])
async def test_no_token_depends_on_the_head(addresses: dict[str, str], coordinator: str) -> None:
    async with AsyncClient(addresses[coordinator]) as client:
        plain = await answers(client, SpeculationParams(enabled=False))
        for way in WAYS:
            assert await answers(client, way) == plain, way
        assert await asyncio.gather(*(answers(client, way) for way in WAYS * 2)) == [plain] * (2 * len(WAYS))
    await wait_until_all_is_free(addresses)


async def test_the_head_drafts_and_is_named(addresses: dict[str, str]) -> None:
    async with AsyncClient(addresses["alone"]) as client:
        answer = await client.complete(PROMPT, SAMPLINGS[0], HEAD[2], trace=True)
        rounds = [each for each in answer.traces if each.drafter == "head"]
        # All but the first one and those that have no room for more.
        assert len(rounds) >= len(answer.traces) - 4
        assert answer.finish.speculation.accepted > 0
        assert answer.finish.timing.draft_ms > 0


@pytest.mark.parametrize("name", ["eagle", "dflash"])
async def test_no_token_depends_on_a_head_of_another_format(host: Host, tmp_path: Path, name: str) -> None:
    WRITERS[name](tmp_path / "head", model="tiny-32-a")
    target = f"unix:{tmp_path}/target.sock"
    host.start("target_server", "--listen", target, *UNLIKE_TARGET, *CHECKED, "--draft-head", f"{tmp_path}/head")
    address = host.start("coordinator", "--draft", "none", "--target", target).address
    async with AsyncClient(address) as client:
        plain = await answers(client, SpeculationParams(enabled=False))
        ways = [*HEAD[1:4], SpeculationParams()]
        assert await asyncio.gather(*(answers(client, way) for way in ways * 2)) == [plain] * (2 * len(ways))
        # A random head guesses little, but at this temperature most of a sample is the noise that it shares with the target.
        sampled = [await client.complete(PROMPT, each, HEAD[2], trace=True) for each in (SAMPLINGS[2], SAMPLINGS[4])]
        assert sum(each.finish.speculation.accepted for each in sampled) > 0
        for each in sampled:
            assert len([round_ for round_ in each.traces if round_.drafter == "head"]) >= len(each.traces) - 4


@pytest.mark.parametrize("sampling", [SAMPLINGS[0], SAMPLINGS[2]], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tail", [[], [30, 31]], ids=["the same text", "another text"])
async def test_a_prompt_that_ends_anywhere_in_a_cached_block_drafts_alike(
    addresses: dict[str, str], sampling: SamplingParams, tail: list[int]
) -> None:
    """The cached blocks were filled by rounds with drafts of the head, accepted and rejected."""
    way, salt = HEAD[2], f"shared {sampling.seed} {tail}"
    async with AsyncClient(addresses["alone"]) as client:
        known = PROMPT + (await client.complete(PROMPT, sampling, way, cache_salt=salt)).token_ids
        sampling = replace(sampling, max_tokens=12)
        for length in range(BLOCK_SIZE + 1, 2 * BLOCK_SIZE + 2):
            prompt = known[:length] + tail
            plain = await client.complete(prompt, sampling, SpeculationParams(enabled=False), cache_salt="plain")
            read = await client.complete(prompt, sampling, way, cache_salt=f"{salt} {length}")
            found = await client.complete(prompt, sampling, way, cache_salt=salt)
            assert found.finish.cached_prompt_tokens == min(length, len(prompt) - 1) // BLOCK_SIZE * BLOCK_SIZE
            assert found.token_ids == read.token_ids == plain.token_ids
            assert found.finish.speculation == read.finish.speculation


async def test_what_the_head_can_not_do_is_done_without_it(addresses: dict[str, str]) -> None:
    """Several beams, lenience, ratios of probabilities."""
    way = SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=4)
    async with AsyncClient(addresses["alone"]) as client:
        beams = SamplingParams(max_tokens=12, beams=2)
        off = SpeculationParams(enabled=False)
        assert (await client.complete(PROMPT, beams, way)).token_ids == (
            await client.complete(PROMPT, beams, off)
        ).token_ids
        lenient = SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=4, lenience=0.5)
        answer = await client.complete(PROMPT, SAMPLINGS[0], lenient, trace=True)
        assert "head" not in {each.drafter for each in answer.traces}
        ratios = SpeculationParams(rule=Rule.REJECTION, num_speculative_tokens=Bounds(0, 4))
        answer = await client.complete(PROMPT, SAMPLINGS[1], ratios, trace=True)
        assert "head" not in {each.drafter for each in answer.traces}


async def test_a_coordinator_whose_target_has_no_head_says_so(host: Host) -> None:
    async with AsyncClient(host.trio(UNLIKE_TARGET, UNLIKE_DRAFT).address) as client:
        with pytest.raises(InvalidArgument, match="no target has a draft head"):
            await client.complete(PROMPT, SAMPLINGS[0], HEAD[0])


async def test_a_generation_that_is_cut_off_frees_its_blocks(addresses: dict[str, str]) -> None:
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    async with AsyncClient(addresses["alone"]) as client:
        for num_chunks in range(1, 8):
            chunks = client.stream([11, 12, 13, num_chunks], sampling, HEAD[2])
            for _ in range(num_chunks):
                await anext(chunks)
            await chunks.aclose()
    await wait_until_all_is_free(addresses)


@pytest.mark.slow
async def test_no_token_is_lost_when_the_target_dies(tmp_path: Path) -> None:
    sampling, tokens = SamplingParams(max_tokens=400, ignore_eos=True), list[int]()
    write_head(tmp_path / "head", model="tiny-32-a")
    with contextlib.ExitStack() as stack:
        server = start_service("target_server", tmp_path, *UNLIKE_TARGET, "--draft-head", f"{tmp_path}/head")
        stack.enter_context(running(server))
        coordinator = start_service("coordinator", tmp_path, "--draft", "none", "--target", server.address)
        stack.enter_context(running(coordinator))
        async with AsyncClient(coordinator.address) as client:
            plain = await client.complete([1, 2, 3], sampling, SpeculationParams(enabled=False))
            async for chunk in client.stream([1, 2, 3], sampling, HEAD[2]):
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
