"""What was computed for a prompt's beginning is found again, on both servers, and changes no output."""

import asyncio
from typing import Any

import pytest

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.conftest import TINY
from tests.end_to_end.test_load import token_prompts
from tests.hosted import Host
from tests.services import Trio

# Of the tiny models, and of others.
BLOCK_SIZE, DEFAULT_BLOCK_SIZE = 16, 64
PARAMS = SamplingParams(max_tokens=20, ignore_eos=True)
SPECULATIVE = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3)


@pytest.fixture(scope="module")
def uncached_trio(host: Host) -> Trio:
    flags = (*TINY, "--no-prefix-caching")
    return host.trio(flags, flags)


async def complete(trio: Trio, *prompts: list[int]) -> list[Completion]:
    """One after the other."""
    async with AsyncClient(trio.address) as client:
        return [await client.complete(prompt, PARAMS, SPECULATIVE) for prompt in prompts]


def fresh_prompt(number: int) -> list[int]:
    """One that no other test has sent."""
    return [number, *token_prompts(1, 200)[0], *range(100, 200)]


async def test_the_second_turn_of_a_conversation_feeds_only_what_is_new(tiny_trio: Trio, uncached_trio: Trio) -> None:
    first = fresh_prompt(11)
    [answer] = await complete(tiny_trio, first)
    assert answer.finish.cached_prompt_tokens == 0
    # All but the answer's last token were fed.
    second = first + answer.token_ids + [7, 8, 9]
    [again] = await complete(tiny_trio, second)
    known = len(first) + len(answer.token_ids) - 1
    assert again.finish.cached_prompt_tokens == known // BLOCK_SIZE * BLOCK_SIZE
    [reference] = await complete(uncached_trio, second)
    assert reference.finish.cached_prompt_tokens == 0
    assert again.token_ids == reference.token_ids
    # The draft's cache is as good: its proposals are accepted as often.
    assert again.finish.speculation == reference.finish.speculation


async def test_a_prompt_that_comes_again_is_fed_from_its_last_token_on(tiny_trio: Trio) -> None:
    prompt = fresh_prompt(12)[: 4 * BLOCK_SIZE]
    first, second = await complete(tiny_trio, prompt, prompt)
    # Its last token's logits are wanted, so its last block is fed again.
    assert second.finish.cached_prompt_tokens == 3 * BLOCK_SIZE
    assert second.token_ids == first.token_ids


async def test_prompts_that_begin_alike_do_not_disturb_one_another(tiny_trio: Trio, uncached_trio: Trio) -> None:
    beginning = fresh_prompt(13)
    prompts = [[*beginning, *ending] for ending in token_prompts(12, 40)]
    async with AsyncClient(tiny_trio.address) as client:
        at_once = await asyncio.gather(*(client.complete(prompt, PARAMS, SPECULATIVE) for prompt in prompts))
        later = await asyncio.gather(*(client.complete(prompt, PARAMS, SPECULATIVE) for prompt in prompts))
    reference = await complete(uncached_trio, *prompts)
    assert [each.token_ids for each in at_once] == [each.token_ids for each in reference]
    assert [each.token_ids for each in later] == [each.token_ids for each in reference]
    assert all(each.finish.cached_prompt_tokens >= len(beginning) // BLOCK_SIZE * BLOCK_SIZE for each in later)


async def test_all_of_an_answer_that_ends_in_a_call_is_found(embedded_pair: Trio) -> None:
    """Also what the call's form forced at its end, which no round has fed."""
    function = {"name": "list_files", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}
    tools = [{"type": "function", "function": function}]
    asked: Any = {"tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    async with AsyncClient(embedded_pair.address) as client:
        # A prompt that ends a little before its last block does.
        for num in range(DEFAULT_BLOCK_SIZE):
            messages = [{"role": "user", "content": "Which files are there?" + " no" * num}]
            prompt = await client.tokenize(messages, tools=tools)
            if len(prompt) % DEFAULT_BLOCK_SIZE == DEFAULT_BLOCK_SIZE - 4:
                break
        # It is read while the tool runs: one that returns at once may be too early.
        for attempt in range(8):
            asked["cache_salt"] = salt = str(attempt)
            call = await client.complete(messages, SamplingParams(max_tokens=60), **asked)
            assert call.finish is not None
            assert call.finish.reason == "tool_calls"
            await asyncio.sleep(0.02 * 2**attempt)
            continued = await client.complete([*prompt, *call.token_ids, 7, 8, 9], PARAMS, cache_salt=salt)
            assert continued.finish is not None
            if continued.finish.cached_prompt_tokens == len(prompt) + 4:
                return
    raise AssertionError(f"{continued.finish.cached_prompt_tokens} of {len(prompt) + 4} tokens were cached")


async def test_scored_prompts_are_fed_whole(tiny_trio: Trio) -> None:
    prompt = fresh_prompt(14)
    params = SamplingParams(max_tokens=4, prompt_logprobs=0)
    async with AsyncClient(tiny_trio.address) as client:
        first, second = [await client.complete(prompt, params, SPECULATIVE) for _ in range(2)]
    assert second.finish.cached_prompt_tokens == 0
    assert [each.logprob for each in second.prompt_logprobs] == [each.logprob for each in first.prompt_logprobs]
