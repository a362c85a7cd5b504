"""A model that thinks: its reasoning comes apart from its answer, the same with any drafter, and is part of any grammar."""

import asyncio
import json
from typing import Any

import pytest

from paceline.client import AsyncClient, Completion
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, Rule, SpeculationParams
from tests.hosted import Host
from tests.services import Trio
from tests.thinking import END_THINK, make_backend, write_thinking_model

PROMPT = [{"role": "user", "content": "Think."}]
END_ID = make_backend(has_special_marks=False).token_to_id(END_THINK)
# Random weights: without a push no reasoning would end.
PUSH = {END_ID: 6.0}
GREEDY = SamplingParams(max_tokens=120, seed=3, repetition_penalty=1.2, logit_bias={END_ID: 1.0})
SAMPLED = SamplingParams(max_tokens=120, seed=3, temperature=1.0, logit_bias=PUSH)
OPENED = {"enable_thinking": True}
VARIANTS = {
    "off": SpeculationParams(enabled=False),
    "n-gram": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "model": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "adaptive": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=Bounds(1, 8)),
    "default": SpeculationParams(),
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
    folder = tmp_path_factory.mktemp("thinking")
    write_thinking_model(folder)
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


async def every(client: AsyncClient, sampling: SamplingParams, **options: Any) -> Completion:
    """Returns the answer, which is the same with every drafter."""
    done = await asyncio.gather(
        *(client.complete(PROMPT, sampling, each, template_options=OPENED, **options) for each in VARIANTS.values())
    )
    assert {name: substance(each) for name, each in zip(VARIANTS, done, strict=True)} == dict.fromkeys(
        VARIANTS, substance(done[0])
    )
    return done[0]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_reasoning_is_no_text(client: AsyncClient, sampling: SamplingParams) -> None:
    done = await every(client, sampling)
    assert done.finish is not None
    assert "</think>" not in done.reasoning
    if END_ID in done.token_ids:
        num = done.token_ids.index(END_ID) + 1
        assert done.finish.reasoning_tokens == num
        assert done.text
    else:
        assert (done.text, done.finish.reasoning_tokens) == ("", done.finish.completion_tokens)


@pytest.mark.parametrize("fixed", [False, True])
async def test_a_format_holds_after_the_reasoning(client: AsyncClient, fixed: bool) -> None:
    wanted = OutputFormat.of_schema(SCHEMA, fixed_whitespace=fixed)
    for seed in range(4):
        sampling = SamplingParams(max_tokens=300, seed=seed, temperature=1.0, logit_bias=PUSH)
        done = await every(client, sampling, format=wanted)
        assert done.finish is not None
        if done.finish.reason == "stop":
            assert set(done.parsed()) == {"is", "of"}
            assert done.finish.speculation.forced > 0
    assert done.finish.reason == "stop"
    assert done.finish.reasoning_tokens == done.token_ids.index(END_ID) + 1


async def test_calls_come_after_the_reasoning(client: AsyncClient) -> None:
    sampling = SamplingParams(max_tokens=300, seed=1, temperature=1.0, logit_bias=PUSH)
    done = await every(client, sampling, tools=TOOLS, tool_choice="required")
    assert done.finish is not None
    assert (done.finish.reason, done.text) == ("tool_calls", "")
    assert done.reasoning
    assert all(set(json.loads(each.arguments)) == {"is", "of"} for each in done.tool_calls)


async def test_each_sample_has_its_own_reasoning(client: AsyncClient) -> None:
    sampling = SamplingParams(max_tokens=60, n=3, seed=5, temperature=1.0, logit_bias=PUSH)
    done = await client.complete_all(PROMPT, sampling, VARIANTS["model"], template_options=OPENED)
    assert len({each.reasoning for each in done}) == 3
    drawn = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION)
    again = await client.complete_all(PROMPT, sampling, drawn, template_options=OPENED)
    for each in again:
        assert each.finish is not None
        has_ended = END_ID in each.token_ids
        num = each.token_ids.index(END_ID) + 1 if has_ended else len(each.token_ids)
        assert each.finish.reasoning_tokens == num
        assert has_ended or not each.text


async def test_a_closed_reasoning_and_a_text_of_ones_own_have_none(client: AsyncClient) -> None:
    for options in ({"template_options": {"enable_thinking": False}}, {"raw": True}):
        prompt = PROMPT if "raw" not in options else "<think>\n"
        done = await client.complete(prompt, SAMPLED, VARIANTS["off"], **options)
        assert done.finish is not None
        assert (done.reasoning, done.finish.reasoning_tokens) == ("", 0)


async def test_reasoning_goes_back_into_the_template(client: AsyncClient) -> None:
    said = {"role": "assistant", "content": "Yes.", "reasoning": "Hm."}
    with_reasoning, without = [
        await client.tokenize([*PROMPT, each, *PROMPT]) for each in (said, {"role": "assistant", "content": "Yes."})
    ]
    text = (await client.detokenize(with_reasoning, skip_special_tokens=False)).text
    assert "<think>\nHm.\n</think>\n\nYes." in text
    assert len(with_reasoning) > len(without)
