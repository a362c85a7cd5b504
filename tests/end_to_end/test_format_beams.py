"""Beams under a format or with tools are those of a slow search over all that may follow, with and without drafts."""

import asyncio
import functools
import json
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

from coordinator.format_grammars import make_grammar
from paceline.client import AsyncClient
from paceline.engine.models.weights import find_folder, load_model
from paceline.errors import InvalidArgument
from paceline.grammar import GrammarEngine
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.end_to_end.beam_oracle import Tokens, slow_search
from tests.end_to_end.test_formats import FORMATS, PROMPT
from tests.services import Trio, wait_until_free

PLAIN = SpeculationParams(enabled=False)
DRAFTED = {k: SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=k) for k in (1, 4, 16)}
MODEL = "smollm2-135m"
# Of the real model, which follows it to the end.
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 2}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}  # fmt: skip
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 12}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    },
    {"type": "function", "function": {"name": "get_time"}},
]
# SmolLM2's vocabulary lacks these bytes.
UNWRITABLE = OutputFormat(regex="a[\x13\x14]")


@functools.cache
def real_model() -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(find_folder(MODEL, torch.float32, print), dtype=torch.float32).eval()


@functools.cache
def engine() -> GrammarEngine:
    model = load_model(MODEL, torch.bfloat16, in_place=True)
    return GrammarEngine(model.tokenizer_files["tokenizer.json"], model.config.vocab_size, model.config.eos_token_ids)


@torch.inference_mode()
def logits_after(prompt: list[int], texts: list[Tokens]) -> NDArray[np.float64]:
    ids = torch.tensor([[*prompt, *text] for text in texts])
    return real_model()(ids, logits_to_keep=1).logits[:, -1].double().numpy()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("wanted", "width", "penalty"),
    [
        (OutputFormat.of_schema(SCHEMA), 4, 1.0),
        (OutputFormat.of_schema(SCHEMA, fixed_whitespace=True), 2, 0.0),
        (OutputFormat(regex="(yes|no), [a-z ]{3,9}"), 3, 2.0),
        (OutputFormat(choice=("alpha beta", "alpha gamma", "delta", "de facto")), 4, -1.0),
    ],
    ids=["schema", "compact", "regex", "choice"],
)
async def test_beams_are_those_of_a_slow_search(
    real_trio: Trio, wanted: OutputFormat, width: int, penalty: float
) -> None:
    sampling = SamplingParams(max_tokens=40, beams=width, length_penalty=penalty)
    async with AsyncClient(real_trio.address) as client:
        prompt = await client.tokenize(PROMPT)
        expected = await asyncio.to_thread(
            slow_search, functools.partial(logits_after, prompt), engine().grammar(make_grammar(wanted)), width, penalty, (2,),
            sampling.max_tokens,
        )  # fmt: skip
        for speculation in (PLAIN, DRAFTED[4]):
            done = await client.complete(prompt, sampling, speculation, format=wanted)
            assert done.token_ids == expected, speculation
            assert done.finish is not None
            assert (done.finish.speculation.accepted > 0) == speculation.enabled


@pytest.mark.parametrize(
    ("name", "width", "k"),
    [("schema", 5, 4), ("compact", 2, 16), ("regex", 5, 1), ("choice", 5, 16), ("grammar", 2, 4)],
)
async def test_drafts_change_no_beam_and_the_text_fits(embedded_pair: Trio, name: str, width: int, k: int) -> None:
    wanted, fits = FORMATS[name]
    sampling = SamplingParams(max_tokens=80, beams=width)
    async with AsyncClient(embedded_pair.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN, format=wanted)
        drafted = await client.complete(PROMPT, sampling, DRAFTED[k], format=wanted)
        await wait_until_free(embedded_pair.target)
        await wait_until_free(embedded_pair.draft)
    assert plain.finish is not None
    assert plain.finish.reason == "stop"
    assert fits(plain.text)
    assert drafted.token_ids == plain.token_ids


async def test_beams_that_max_tokens_cuts_begin_as_the_format_wants(embedded_pair: Trio) -> None:
    sampling = SamplingParams(max_tokens=6, beams=3)
    async with AsyncClient(embedded_pair.address) as client:
        done = await client.complete(PROMPT, sampling, PLAIN, format=FORMATS["compact"][0])
    assert done.finish is not None
    assert (done.finish.reason, len(done.token_ids)) == ("length", 6)
    assert done.text.startswith('{"name": "')


@pytest.mark.parametrize("choice", ["required", "get_time"])
async def test_beams_with_tools_give_calls(embedded_pair: Trio, choice: str) -> None:
    chat = [{"role": "user", "content": "What is the weather in Paris?"}]
    sampling = SamplingParams(max_tokens=80, beams=3)
    async with AsyncClient(embedded_pair.address) as client:
        plain, drafted = [
            await client.complete(chat, sampling, each, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)
            for each in (PLAIN, DRAFTED[4])
        ]
    assert plain.finish is not None
    assert plain.finish.reason == "tool_calls"
    (call,) = plain.tool_calls
    assert choice in ("required", call.name)
    parameters = {each["function"]["name"]: each["function"].get("parameters", {}) for each in TOOLS}[call.name]
    jsonschema.validate(json.loads(call.arguments), parameters)
    assert drafted.token_ids == plain.token_ids


async def test_a_beam_at_a_dead_end_dies_and_the_request_fails_if_all_do(embedded_pair: Trio) -> None:
    either = OutputFormat(regex=f"({UNWRITABLE.regex}|bcd)")
    async with AsyncClient(embedded_pair.address) as client:
        for speculation in (PLAIN, DRAFTED[4]):
            done = await client.complete(PROMPT, SamplingParams(beams=3), speculation, format=either)
            assert done.text == "bcd"
            for beams in (1, 3):
                with pytest.raises(
                    InvalidArgument, match="format and the request's token lists allow no token together"
                ):
                    await client.complete(PROMPT, SamplingParams(beams=beams), speculation, format=UNWRITABLE)
