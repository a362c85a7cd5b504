"""What the gateway keeps of answers is bounded, however many samples, tokens and log-probabilities a request asks for."""

import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gateway import endpoints
from gateway.answer_memory import ANSWER_FRACTION, AnswerMemory
from gateway.app import make_app
from gateway.config import GatewaySettings
from paceline.errors import InvalidArgument, ResourceExhausted
from paceline.results import Chunk
from paceline.v1 import generation_pb2
from tests.gateway.fake_coordinator import FakeCoordinator

MAX_BYTES = 8 << 20
NUM_TOKENS, NUM_LIKELIEST = 8, 20
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "logprobs": True, "top_logprobs": 20},
    "/v1/completions": {"prompt": "x", "logprobs": 20},
    "/v1/responses": {
        "input": "x", "top_logprobs": 20, "include": ["message.output_text.logprobs"], "max_output_tokens": 60,
    },
}  # fmt: skip


@pytest.fixture
async def small_http(
    coordinator: FakeCoordinator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx2.AsyncClient]:
    monkeypatch.setattr(endpoints, "MAX_BYTES", MAX_BYTES)
    app = make_app(GatewaySettings(coordinators=f"unix:{tmp_path}/coordinator.sock"))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client,
    ):
        yield client


def scored_round() -> generation_pb2.GenerateResponse:
    one = {"logprob": -1.0, "top_token_ids": [1, 2, 3, 4] * 5, "top_logprobs": [-1.0] * NUM_LIKELIEST}
    return generation_pb2.GenerateResponse(
        token_ids=[1] * NUM_TOKENS, text="a" * NUM_TOKENS, text_lengths=[1] * NUM_TOKENS,
        origins=[generation_pb2.ORIGIN_TARGET] * NUM_TOKENS, logprobs=[one] * NUM_TOKENS,
    )  # fmt: skip


@pytest.mark.parametrize("path", BODIES)
async def test_an_answer_beyond_its_share_is_refused_and_a_stream_only_if_its_end_repeats_it(
    small_http: httpx2.AsyncClient, coordinator: FakeCoordinator, path: str
) -> None:
    coordinator.rounds = [scored_round()] * 100
    tracemalloc.start()
    try:
        whole = await small_http.post(path, json=BODIES[path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert whole.status_code == 400
    assert "ask for a stream, or for fewer log-probabilities, samples or tokens" in whole.json()["error"]["message"]
    assert peak < MAX_BYTES / 2
    stream = await small_http.post(path, json=BODIES[path] | {"stream": True})
    assert stream.status_code == 200
    assert ("the answer takes more than" in stream.text) == (path == "/v1/responses")
    coordinator.rounds = [scored_round()]
    assert (await small_http.post(path, json=BODIES[path])).status_code == 200


async def test_a_prompts_scores_that_are_too_large_for_one_event_are_refused(
    small_http: httpx2.AsyncClient, coordinator: FakeCoordinator
) -> None:
    scored = scored_round()
    coordinator.rounds = [
        generation_pb2.GenerateResponse(prompt_logprobs=scored.logprobs) for _ in range(100)
    ] + [scored]  # fmt: skip
    coordinator.max_model_len = 1000
    body = {"prompt": [1] * (100 * NUM_TOKENS + 1), "logprobs": 20, "echo": True, "stream": True}
    said = await small_http.post("/v1/completions", json=body)
    assert said.status_code == 400
    assert "the answer takes more than" in said.json()["error"]["message"]


def text_of(num_bytes: int) -> Chunk:
    return Chunk("a" * (num_bytes // 8), [], "")


def test_all_answers_together_are_bounded_and_the_larger_are_refused() -> None:
    memory = AnswerMemory(8000)
    share = memory.max_bytes // ANSWER_FRACTION
    with memory.answer() as a, memory.answer() as b, memory.answer() as c, memory.answer() as d, memory.answer() as e:
        for each in (a, b, c, d):
            each.keep(text_of(share))
        e.keep(text_of(800))
        with pytest.raises(InvalidArgument):
            a.keep(text_of(8))
        with pytest.raises(ResourceExhausted):
            e.keep(text_of(800))
    with memory.answer() as answer:
        answer.keep(text_of(share))


def test_an_answer_that_is_over_counts_no_longer() -> None:
    memory = AnswerMemory(8000)
    for _ in range(20):
        with memory.answer() as answer:
            answer.keep(text_of(1600))
    with memory.answer() as first, memory.answer() as second:
        first.keep(text_of(1600))
        second.keep(text_of(1600))
