"""Channels of a model that writes harmony: the same answer with any drafter, and formats and tools within their channels."""

import asyncio
import json
from typing import Any

import pytest

from paceline.client import AsyncClient, Completion
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, SpeculationParams
from tests.harmony import tokenizer_of, write_harmony_model
from tests.hosted import Host
from tests.services import Trio

PROMPT = [{"role": "user", "content": "Think."}]
# Random weights: without a push no message would end, and none be reasoning.
IDS = [tokenizer_of().id_of(name) for name in ("<|end|>", "<|return|>", "<|channel|>", "a")]
PUSH = dict(zip(IDS, (6.0, 3.0, 3.0, 4.0), strict=True))
VARIANTS = {
    "off": SpeculationParams(enabled=False),
    "n-gram": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "adaptive": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=Bounds(1, 8)),
}
SCHEMA = {
    "type": "object",
    "properties": {"is": {"type": "boolean"}, "of": {"enum": ["red", "green"]}},
    "required": ["is", "of"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "paint", "parameters": SCHEMA}}]


@pytest.fixture(scope="module")
def trio(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Trio:
    folder = tmp_path_factory.mktemp("harmony")
    write_harmony_model(folder)
    flags = ("--model", str(folder), "--kv-cache-memory", "16MiB")
    return host.trio(flags, flags)


@pytest.fixture
async def client(trio: Trio):
    async with AsyncClient(trio.address) as client:
        yield client


def substance(done: Completion) -> tuple[Any, ...]:
    assert done.finish is not None
    calls = [(each.name, each.arguments) for each in done.tool_calls]
    return done.token_ids, done.reasoning, done.text, calls, done.finish.reason, done.finish.reasoning_tokens


async def every(client: AsyncClient, seed: int, **options: Any) -> Completion:
    """Returns the answer, which is the same with every drafter."""
    sampling = SamplingParams(max_tokens=400, seed=seed, temperature=1.0, logit_bias=PUSH)
    done = await asyncio.gather(*(client.complete(PROMPT, sampling, each, **options) for each in VARIANTS.values()))
    parts = [substance(each) for each in done]
    assert parts == [parts[0]] * len(parts)
    return done[0]


async def test_a_call_is_forced_in_its_channel(client: AsyncClient) -> None:
    reasoned = 0
    for seed in range(3):
        done = await every(client, seed, tools=TOOLS, tool_choice="required")
        assert done.finish is not None
        assert (done.finish.reason, done.text) == ("tool_calls", "")
        assert [set(json.loads(each.arguments)) for each in done.tool_calls] == [{"is", "of"}]
        assert bool(done.reasoning) <= bool(done.finish.reasoning_tokens)
        reasoned += bool(done.reasoning)
    assert reasoned > 0


async def test_a_format_holds_in_the_final_channel(client: AsyncClient) -> None:
    done = await every(client, 1, format=OutputFormat.of_schema(SCHEMA))
    assert set(done.parsed()) == {"is", "of"}


async def test_a_model_may_choose_to_call(client: AsyncClient) -> None:
    for seed in range(3):
        done = await every(client, seed, tools=TOOLS)
        assert "<|" not in done.text + done.reasoning
        assert all(each.name == "paint" for each in done.tool_calls)
