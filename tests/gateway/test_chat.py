"""/v1/chat/completions, called by OpenAI's own package: what it gives is what gRPC gives."""

import json
from typing import Any

import httpx2
import openai
import pytest

from paceline.client import Client
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.gateway.conftest import RunningGateway

MESSAGES: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name three colors."}]
SAMPLINGS = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "seed": 7, "top_p": 0.9},
    "penalized": {"temperature": 0, "presence_penalty": 1.5, "frequency_penalty": 0.5},
}
WAYS: dict[str, Any] = {
    "unasked": None,
    "off": {"enabled": False},
    "model": {"drafter": "model", "num_speculative_tokens": 4},
    "n-gram": {"drafter": "ngram", "num_speculative_tokens": 4},
    "adaptive": {"num_speculative_tokens": "adaptive"},
    "match": {"drafter": "model", "num_speculative_tokens": 3, "rule": "match"},
}
NUM_TOKENS = 16


# Every way greedily, and every sampling unasked and by the draft model.
PAIRS = [("greedy", way) for way in WAYS] + [
    (name, way) for name in ("sampled", "penalized") for way in ("unasked", "model")
]


@pytest.mark.parametrize(("name", "way"), PAIRS)
def test_text_is_that_of_grpc_streamed_and_whole(
    client: openai.OpenAI, gateway_service: RunningGateway, name: str, way: str
) -> None:
    """The same with real text, of many prompts: test_same_as_grpc.py."""
    asked: dict[str, Any] = {"model": "dummy:tiny", "messages": MESSAGES, "max_tokens": NUM_TOKENS, **SAMPLINGS[name]}
    asked["extra_body"] = {} if WAYS[way] is None else {"speculation": WAYS[way]}
    with Client(gateway_service.trio.address) as grpc:
        wanted = grpc.complete(
            MESSAGES, SamplingParams(max_tokens=NUM_TOKENS, **SAMPLINGS[name]), SpeculationParams(enabled=False)
        )
    assert wanted.finish is not None
    whole = client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == wanted.text
    assert whole.choices[0].finish_reason == wanted.finish.reason
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == wanted.finish.prompt_tokens
    assert whole.usage.completion_tokens == wanted.finish.completion_tokens
    chunks = list(client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == wanted.text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == wanted.finish.completion_tokens


def test_a_stream_has_one_role_one_reason_and_usage_only_where_asked(client: openai.OpenAI) -> None:
    asked: Any = {"model": "dummy:tiny", "messages": MESSAGES, "max_tokens": 8, "stream": True}
    chunks = list(client.chat.completions.create(**asked))
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert [chunk.choices[0].delta.role for chunk in chunks] == ["assistant", *[None] * (len(chunks) - 1)]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason in ("stop", "length")
    assert all(chunk.usage is None for chunk in chunks)
    assert len({chunk.id for chunk in chunks}) == 1


async def test_a_chunk_without_usage_has_no_such_key(http: httpx2.AsyncClient) -> None:
    """Clients of llama.cpp read figures wherever they find the key."""
    asked = {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}}
    events = (await http.post("/v1/chat/completions", json=asked)).text.split("\n\n")
    assert ["usage" in each for each in events[:-2]] == [*[False] * (len(events) - 3), True]


def test_usage_in_every_chunk_grows_to_the_whole(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True, "continuous_usage_stats": True}
    chunks = list(
        client.chat.completions.create(
            model="dummy:tiny", messages=MESSAGES, max_tokens=12, stream=True, stream_options=options,
            extra_body={"ignore_eos": True},
        )
    )  # fmt: skip
    counts = [chunk.usage.completion_tokens for chunk in chunks if chunk.usage]
    assert counts == sorted(counts)
    assert (counts[0], counts[-1]) == (0, 12)


USED: dict[str, tuple[str, dict[str, Any]]] = {
    "a chat": ("/v1/chat/completions", {"messages": MESSAGES}),
    "three samples of a chat": ("/v1/chat/completions", {"messages": MESSAGES, "n": 3, "temperature": 1}),
    "a text": ("/v1/completions", {"prompt": "t1 t2 t3"}),
    "three samples of two texts": ("/v1/completions", {"prompt": ["t1 t2 t3", "t4"], "n": 3, "temperature": 1}),
    "two lists of ids": ("/v1/completions", {"prompt": [[5, 6, 7], [8] * 20]}),
    "a long prompt with its scores": ("/v1/completions", {"prompt": [[5] * 300, [6]], "echo": True, "logprobs": 2}),
    "a prompt alone": ("/v1/completions", {"prompt": "t1 t2 t3", "echo": True, "max_tokens": 0}),
}  # fmt: skip


@pytest.mark.parametrize("name", USED)
async def test_usage_has_the_prompts_tokens_in_every_chunk(http: httpx2.AsyncClient, name: str) -> None:
    path, asked = USED[name]
    body = {"max_tokens": 5, "seed": 1, "ignore_eos": True, **asked}
    whole = (await http.post(path, json=body)).json()["usage"]
    options = {"include_usage": True, "continuous_usage_stats": True}
    response = await http.post(path, json={**body, "stream": True, "stream_options": options})
    chunks = [json.loads(line[6:]) for line in response.text.splitlines() if line.startswith("data: {")]
    used = [chunk["usage"] for chunk in chunks]
    assert len(used) > 1
    assert {each["prompt_tokens"] for each in used} == {whole["prompt_tokens"]}
    assert all(each["total_tokens"] == each["prompt_tokens"] + each["completion_tokens"] for each in used)
    assert used[-1]["completion_tokens"] == whole["completion_tokens"]
    if isinstance(asked.get("prompt", ""), str):
        assert len({each["prompt_tokens_details"]["cached_tokens"] for each in used}) == 1


def test_samples_come_as_choices(client: openai.OpenAI, gateway_service: RunningGateway) -> None:
    asked: Any = {"model": "dummy:tiny", "messages": MESSAGES, "max_tokens": 6, "n": 3, "temperature": 0.9, "seed": 4}
    with Client(gateway_service.trio.address) as grpc:
        wanted = grpc.complete_all(MESSAGES, SamplingParams(max_tokens=6, n=3, temperature=0.9, seed=4))
    whole = client.chat.completions.create(**asked)
    assert [choice.message.content for choice in whole.choices] == [each.text for each in wanted]
    assert whole.usage is not None
    assert whole.usage.completion_tokens == sum(len(each.token_ids) for each in wanted)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(**asked, stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert texts == [each.text for each in wanted]


def test_log_probabilities_are_those_of_grpc(real_client: openai.OpenAI, real_gateway: RunningGateway) -> None:
    sampling = SamplingParams(max_tokens=10, logprobs=3)
    with Client(real_gateway.trio.address) as grpc:
        wanted = grpc.complete(MESSAGES, sampling, SpeculationParams(enabled=False))
    asked: Any = {
        "model": "smollm2-135m",
        "messages": MESSAGES,
        "max_tokens": 10,
        "temperature": 0,
        "logprobs": True,
        "top_logprobs": 3,
    }
    whole = real_client.chat.completions.create(**asked)
    found = whole.choices[0].logprobs.content  # type: ignore[union-attr]
    assert found is not None
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in wanted.logprobs])
    assert [[top.logprob for top in each.top_logprobs] for each in found] == [
        pytest.approx(each.top_logprobs) for each in wanted.logprobs
    ]
    said = b"".join(bytes(each.bytes or []) for each in found)
    assert said.decode(errors="replace").startswith(wanted.text.rstrip("�"))
    chunks = list(real_client.chat.completions.create(**asked, stream=True))
    streamed = [
        each for chunk in chunks if chunk.choices[0].logprobs for each in chunk.choices[0].logprobs.content or []
    ]
    assert streamed == found


def test_content_in_parts_and_roles_of_newer_clients(client: openai.OpenAI) -> None:
    parts: Any = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Name three colors."}]},
    ]
    answers = [
        client.chat.completions.create(model="dummy:tiny", messages=messages, max_tokens=8, temperature=0)
        for messages in (MESSAGES, parts)
    ]
    assert answers[0].choices[0].message.content == answers[1].choices[0].message.content


async def test_text_parts_are_one_text_with_nothing_between_them(http: httpx2.AsyncClient) -> None:
    async def ids_of(content: Any) -> Any:
        response = await http.post("/tokenize", json={"messages": [{"role": "user", "content": content}]})
        return response.json()["tokens"]

    parts = [{"type": "text", "text": text} for text in ("t1 t", "2", "", " t3\n")]
    assert await ids_of(parts) == await ids_of("t1 t2 t3\n")


def test_a_chat_without_a_limit_goes_on_to_its_end(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(
        model="dummy:tiny", messages=MESSAGES, temperature=0, extra_body={"ignore_eos": True}
    )
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    # What the tiny model holds.
    assert whole.usage.total_tokens == 512


def test_what_speculation_did_is_in_the_last_chunk(client: openai.OpenAI) -> None:
    speculation = {"drafter": "model", "num_speculative_tokens": 4}
    asked: Any = {"model": "dummy:tiny", "messages": MESSAGES, "max_tokens": 21, "temperature": 0}
    asked["extra_body"] = {"speculation": speculation, "ignore_eos": True}
    whole = client.chat.completions.create(**asked).to_dict()
    chunks = [chunk.to_dict() for chunk in client.chat.completions.create(**asked, stream=True)]
    for body in (whole, chunks[-1]):
        figures: Any = body["metrics"]["speculative_decoding"]  # type: ignore[index]
        # The same model drafts: every draft is accepted.
        assert figures["draft_acceptance_rate"] == 1.0
        assert figures["acceptance_histogram"] == [0, 0, 0, 0, 4]
        assert figures["num_spec_steps"] == 4
        assert figures["mean_acceptance_length"] == 5.0
    many = client.chat.completions.create(**{**asked, "n": 2}).to_dict()
    assert many["metrics"] == {"speculative_decoding": None}


def test_bounds_and_beta_of_the_entropy_rule_are_the_requests(client: openai.OpenAI) -> None:
    length = {"num_speculative_tokens": "entropy", "draft_min": 3, "draft_max": 5, "entropy_beta": 0.75}
    extra = {"trace": True, "ignore_eos": True, "speculation": {"drafter": "model", **length}}
    asked: Any = {"model": "dummy:tiny", "messages": MESSAGES, "max_tokens": 9, "temperature": 0, "extra_body": extra}
    chunks = [chunk.to_dict() for chunk in client.chat.completions.create(**asked, stream=True)]
    trace: Any = chunks[2]["choices"][0]["paceline"]  # type: ignore[index]
    assert trace["draft_tokens"] == 5
    assert trace["smoothed_entropies"][0] == pytest.approx(0.25 * trace["entropies"][0])
    assert trace["allowed_draft_tokens"] == [round(5 - 2 * each) for each in trace["smoothed_entropies"]]


def test_trace_says_what_each_round_did(client: openai.OpenAI) -> None:
    extra = {"trace": True, "ignore_eos": True, "speculation": {"drafter": "model", "num_speculative_tokens": 3}}
    chunks = [
        chunk.to_dict()
        for chunk in client.chat.completions.create(
            model="dummy:tiny", messages=MESSAGES, max_tokens=9, temperature=0, stream=True, extra_body=extra
        )
    ]
    traces: list[Any] = [chunk["choices"][0]["paceline"] for chunk in chunks[1:]]  # type: ignore[index]
    assert [len(trace["proposed"]) for trace in traces] == [0, 3, 3]
    assert [len(trace["emitted"]) for trace in traces] == [1, 4, 4]
    assert traces[0]["reason"] != ""
    assert {each["origin"] for each in traces[1]["emitted"]} == {"accepted", "bonus"}
