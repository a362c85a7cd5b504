"""Beam search, with and without speculation, gives transformers' tokens, and leaves no block behind."""

import asyncio

import pytest

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.end_to_end.test_greedy_oracle import expected_ids, spread
from tests.services import Trio, wait_until_free

pytestmark = pytest.mark.slow

PLAIN = SpeculationParams(enabled=False)
DRAFTED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)


async def check_same_ids(trio: Trio, num_prompts: int, sampling: SamplingParams) -> None:
    settings = {"num_beams": sampling.beams, "length_penalty": sampling.length_penalty}
    pairs = await asyncio.to_thread(expected_ids, spread(num_prompts), sampling.max_tokens, **settings)
    async with AsyncClient(trio.address) as client:
        for speculation in (PLAIN, DRAFTED):
            accepted = 0
            for ids, expected in pairs:
                done = await client.complete(ids, sampling, speculation)
                assert done.token_ids == expected, speculation
                assert done.finish is not None
                assert (done.finish.reason == "stop") == (expected[-1] == 2)
                accepted += done.finish.speculation.accepted
            assert (accepted > 0) == speculation.enabled


async def test_beams_are_those_of_transformers(real_trio: Trio) -> None:
    await check_same_ids(real_trio, 1, SamplingParams(max_tokens=16, beams=4))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("width", [2, 8])
async def test_beams_of_each_width_are_those_of_transformers(real_trio: Trio, width: int) -> None:
    """A few prompts: `python -m benchmarks.beams` compares 40."""
    await check_same_ids(real_trio, 2, SamplingParams(max_tokens=32, beams=width))


async def test_drafts_of_another_model_change_no_beam(unlike_trio: Trio) -> None:
    async with AsyncClient(unlike_trio.address) as client:
        for width, penalty in ((2, 1.0), (4, 0.0), (8, -1.0)):
            for prompt in ([1, 2, 3], list(range(30))):
                sampling = SamplingParams(max_tokens=40, beams=width, length_penalty=penalty, stop_token_ids=(7,))
                plain = await client.complete(prompt, sampling, PLAIN)
                for length in (1, 3, 16):
                    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=length)
                    drafted = await client.complete(prompt, sampling, speculation)
                    assert drafted.token_ids == plain.token_ids


@pytest.mark.parametrize("speculation", [PLAIN, DRAFTED], ids=["plain", "drafted"])
async def test_an_answer_comes_whole_and_leaves_no_block_behind(
    tiny_trio: Trio, speculation: SpeculationParams
) -> None:
    sampling = SamplingParams(max_tokens=30, beams=5, ignore_eos=True)
    async with AsyncClient(tiny_trio.address) as client:
        pieces = [chunk async for chunk in client.stream(list(range(50)), sampling, speculation)]
        assert len(pieces) == 1
        assert len(pieces[0].token_ids) == 30
        assert pieces[0].finish is not None
        assert pieces[0].finish.reason == "length"
        # A cancelled command gives its own sequence back. Here none is on its way: the search must.
        await wait_until_free(tiny_trio.target)
        await wait_until_free(tiny_trio.draft)


async def test_a_cancelled_search_leaves_no_block_behind(tiny_trio: Trio) -> None:
    sampling = SamplingParams(max_tokens=200, beams=8, ignore_eos=True)
    async with AsyncClient(tiny_trio.address) as client:
        for speculation in (PLAIN, DRAFTED):
            for delay_s in (0.05, 0.3):
                task = asyncio.create_task(client.complete(list(range(50)), sampling, speculation))
                await asyncio.sleep(delay_s)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await wait_until_free(tiny_trio.target)
                await wait_until_free(tiny_trio.draft)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"beams": 0}, r"beams is 0; it must be in \[1, 10\]"),
        ({"beams": 11}, r"beams is 11; it must be in \[1, 10\]"),
        ({"beams": 2, "length_penalty": 10.5}, r"length_penalty is 10.5; it must be in \[-10, 10\]"),
        ({"length_penalty": 0.5}, "length_penalty is 0.5; it must be 1 without beams"),
        ({"beams": 2, "temperature": 0.5}, "temperature is 0.5; it must be 0 with beams"),
        ({"beams": 2, "n": 2}, "n is 2; it must be 1 with beams"),
        ({"beams": 2, "logprobs": 0}, "logprobs is 0; it must be None with beams"),
        ({"beams": 2, "stop": ("a",)}, "stop is .*; it must be empty with beams"),
        ({"beams": 2, "repetition_penalty": 1.5}, "repetition_penalty is 1.5; it must be 1 with beams"),
    ],
)
def test_what_beams_can_not_go_with_is_refused_by_name(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        SamplingParams(**fields)  # type: ignore[arg-type]


async def test_too_many_ending_tokens_a_trace_and_lenience_are_refused(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address) as client:
        many = SamplingParams(beams=8, stop_token_ids=tuple(range(20)))
        with pytest.raises(InvalidArgument, match="beams is 8; it must be at most 20 together with the"):
            await client.complete([1, 2], many)
        with pytest.raises(InvalidArgument, match="trace is True; it must be left out with beams"):
            await client.complete([1, 2], SamplingParams(beams=2), trace=True)
        lenient = SpeculationParams(drafter=Drafter.MODEL, lenience=0.5)
        with pytest.raises(InvalidArgument, match=r"lenience is 0\.5; it must be 1 with beams"):
            await client.complete([1, 2], SamplingParams(beams=2), lenient)
