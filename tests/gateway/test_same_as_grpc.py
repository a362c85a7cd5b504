"""Greedy text over HTTP is that over gRPC, with its usage and its figures: many prompts, every mode, streamed and whole.

PACELINE_TEST_PROMPTS names another file of prompts; PACELINE_TEST_COUNT says how many of them.
"""

import asyncio
import os
from typing import Any

import openai
import pytest

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.end_to_end.test_greedy_oracle import spread
from tests.gateway.conftest import RunningGateway

NUM_TOKENS = 32
AT_ONCE = 8
MODES: dict[str, tuple[SpeculationParams | None, Any]] = {
    "unasked": (None, None),
    "off": (SpeculationParams(enabled=False), {"enabled": False}),
    "model": (
        SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
        {"drafter": "model", "num_speculative_tokens": 4},
    ),
    "n-gram": (
        SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
        {"drafter": "ngram", "num_speculative_tokens": 4},
    ),
    "hybrid": (
        SpeculationParams(drafter=Drafter.HYBRID, num_speculative_tokens=4),
        {"drafter": "hybrid", "num_speculative_tokens": 4},
    ),
    "entropy": (None, {"drafter": "model", "num_speculative_tokens": "entropy"}),
}


async def stream(client: openai.AsyncOpenAI, asked: Any) -> tuple[str, Any, Any]:
    text, usage, metrics = "", None, None
    async for chunk in await client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        text += "".join(choice.delta.content or "" for choice in chunk.choices)
        usage, metrics = chunk.usage, chunk.to_dict().get("metrics")
    return text, usage, metrics


async def check_prompt(prompt: str, mode: str, grpc: AsyncClient, client: openai.AsyncOpenAI) -> None:
    params, asked_speculation = MODES[mode]
    messages: Any = [{"role": "user", "content": prompt}]
    wanted: Completion = await grpc.complete(messages, SamplingParams(max_tokens=NUM_TOKENS), params)
    asked: dict[str, Any] = {"model": "smollm2-135m", "messages": messages, "max_tokens": NUM_TOKENS, "temperature": 0}
    asked["extra_body"] = {} if asked_speculation is None else {"speculation": asked_speculation}
    whole = await client.chat.completions.create(**asked)
    answers = [
        (whole.choices[0].message.content, whole.usage, whole.to_dict()["metrics"]), await stream(client, asked),
    ]  # fmt: skip
    assert wanted.finish is not None
    figures = wanted.finish.speculation
    for text, usage, metrics in answers:
        assert text == wanted.text, (prompt, mode)
        assert (usage.prompt_tokens, usage.completion_tokens) == (wanted.finish.prompt_tokens, len(wanted.token_ids))
        # Adaptive lengths depend on times.
        if params is not None:
            found = metrics["speculative_decoding"]
            counts = (found["num_spec_steps"], found["num_draft_tokens"], found["num_accepted_draft_tokens"])
            assert counts == (figures.rounds, figures.proposed, figures.accepted)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mode", MODES)
async def test_greedy_text_over_http_is_that_over_grpc(real_gateway: RunningGateway, mode: str) -> None:
    prompts = spread(int(os.environ.get("PACELINE_TEST_COUNT", "6")))
    places = asyncio.Semaphore(AT_ONCE)
    async with AsyncClient(real_gateway.trio.address) as grpc:
        client = openai.AsyncOpenAI(base_url=f"{real_gateway.url}/v1", api_key="none", max_retries=0)

        async def check(prompt: str) -> None:
            async with places:
                await check_prompt(prompt, mode, grpc, client)

        await asyncio.gather(*map(check, prompts))
        await client.close()
