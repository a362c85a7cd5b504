"""Many at once: everyone gets what he would get alone, and nothing is left behind."""

import asyncio
import random

import pytest

from paceline.client import AsyncClient
from paceline.errors import ResourceExhausted
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.conftest import TINY
from tests.hosted import Host
from tests.services import Trio, wait_until_free

pytestmark = pytest.mark.slow

SPECULATIVE = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
BLOCK_SIZE = 16
# Of keys and values, for dummy:tiny.
TINY_TOKEN_BYTES = 512


def token_prompts(count: int, longest: int) -> list[list[int]]:
    """Prompts of random ids and lengths, always the same."""
    source = random.Random(5)
    return [[source.randrange(512) for _ in range(source.randint(1, longest))] for _ in range(count)]


async def outputs_at_once(address: str, prompts: list[object], params: SamplingParams) -> list[list[int]]:
    async with AsyncClient(address) as client:
        done = await asyncio.gather(*(client.complete(prompt, params, SPECULATIVE) for prompt in prompts))
    return [completion.token_ids for completion in done]


async def outputs_alone(address: str, prompts: list[object], params: SamplingParams) -> list[list[int]]:
    async with AsyncClient(address) as client:
        return [(await client.complete(prompt, params, SPECULATIVE)).token_ids for prompt in prompts]


PROMPTS: list[object] = [*token_prompts(32, 200)]
PARAMS = SamplingParams(max_tokens=48, ignore_eos=True)


@pytest.fixture(scope="module")
def alone(tiny_trio: Trio) -> list[list[int]]:
    """The outputs of PROMPTS, one after the other."""
    return asyncio.run(outputs_alone(tiny_trio.address, PROMPTS, PARAMS))


async def test_32_at_once_equal_their_outputs_alone(tiny_trio: Trio, alone: list[list[int]]) -> None:
    assert await outputs_at_once(tiny_trio.address, PROMPTS, PARAMS) == alone
    assert all(len(output) == 48 for output in alone)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [8, pytest.param(32, marks=pytest.mark.campaign)])
async def test_real_texts_at_once_equal_their_outputs_alone(real_trio: Trio, prompts: list[str], count: int) -> None:
    texts: list[object] = [*prompts[:: len(prompts) // count][:count]]
    params = SamplingParams(max_tokens=32)
    alone = await outputs_alone(real_trio.address, texts, params)
    assert await outputs_at_once(real_trio.address, texts, params) == alone


async def test_200_cancelled_generations_leave_every_block_free(tiny_trio: Trio) -> None:
    source = random.Random(7)
    params = SamplingParams(max_tokens=300, ignore_eos=True)

    async def start_and_cancel(client: AsyncClient, prompt: list[int]) -> None:
        task = asyncio.create_task(client.complete(prompt, params, SPECULATIVE))
        await asyncio.sleep(source.random() * 0.3)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async with AsyncClient(tiny_trio.address) as client:
        everyone = token_prompts(200, 200)
        for start in range(0, 200, 25):
            await asyncio.gather(*(start_and_cancel(client, prompt) for prompt in everyone[start : start + 25]))
    await wait_until_free(tiny_trio.draft)
    await wait_until_free(tiny_trio.target)


def press(host: Host, share: int) -> Trio:
    """Services with a cache for one in `share` of the tokens that PROMPTS and their outputs take."""
    num_wanted = sum(-(-(len(prompt) + PARAMS.max_tokens) // BLOCK_SIZE) for prompt in PROMPTS)
    small = (*TINY, "--kv-cache-memory", str(num_wanted // share * BLOCK_SIZE * TINY_TOKEN_BYTES))
    return host.start_trio(small, small)


async def test_a_cache_a_tenth_of_what_is_wanted_changes_no_output(host: Host, alone: list[list[int]]) -> None:
    pressed = press(host, 10)
    assert await outputs_at_once(pressed.address, PROMPTS, PARAMS) == alone
    for server in (pressed.draft, pressed.target):
        await wait_until_free(server)
        # It has checked its cache's bookkeeping whenever it was idle, and would have ended at a fault.
        assert server.stop() == 0


async def test_two_coordinators_that_want_more_than_the_cache_holds_preempt_and_change_no_output(
    host: Host, alone: list[list[int]]
) -> None:
    """Each lets in as many as the cache has room for: together they are twice too many."""
    pressed = press(host, 4)
    other = host.start("coordinator", "--draft", pressed.draft.address, "--target", pressed.target.address)
    halves = await asyncio.gather(
        outputs_at_once(pressed.address, PROMPTS[::2], PARAMS),
        outputs_at_once(other.address, PROMPTS[1::2], PARAMS),
    )
    assert halves == [alone[::2], alone[1::2]]
    for server in (pressed.draft, pressed.target):
        await wait_until_free(server)
        assert server.stop() == 0


async def test_beyond_the_waiting_queue_requests_are_refused_at_once(host: Host) -> None:
    trio = host.trio(TINY, TINY, ("--max-num-seqs", "1", "--max-queue-size", "2"))
    params = SamplingParams(max_tokens=300, ignore_eos=True)
    async with AsyncClient(trio.address) as client:
        everyone = [client.complete(prompt, params) for prompt in token_prompts(8, 20)]
        done = await asyncio.gather(*everyone, return_exceptions=True)
    refused = [result for result in done if isinstance(result, Exception)]
    assert [type(error).__name__ for error in refused] == ["ResourceExhausted"] * 5
    assert all(isinstance(error, ResourceExhausted) and error.retry_after_s for error in refused)
    assert "1 generations are running and 2 waiting; try again in about" in str(refused[0])
