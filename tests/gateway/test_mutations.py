"""Mutated requests: never a 5xx, never a hang, errors in the API's shape, and a bystander who notices nothing."""

import asyncio
import collections
import json
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from gateway.dialects import chat, completions, messages, responses
from tests.gateway.conftest import RunningGateway

TIMEOUT_S = 30
# One of these begins a stream's last event, and none of those is anywhere.
ENDS = ("data: [DONE]", "event: response.completed", "event: response.incomplete", "event: message_stop")
FAILURES = ('data: {"error"', "event: error", "event: response.failed")
AT_ONCE = 8
SHAPE = {"message", "type", "param", "code"}
ANTHROPIC_SHAPE = {"message", "type"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "dummy:tiny", "messages": [{"role": "system", "content": "t1"}, {"role": "user", "content": "t2 t3"}],
        "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["t9"], "logprobs": True, "top_logprobs": 2,
        "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1.5}, "n": 1,
        "speculation": {"enabled": True, "drafter": "model", "num_speculative_tokens": 2}, "trace": True,
        "prediction": {"type": "content", "content": "t2 t3 t4"}, "chat_template_kwargs": {"language": "en"},
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]}},
    },
    "/v1/completions": {
        "prompt": [3, 14, 15], "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True, "n": 2, "top_k": 4,
        "min_tokens": 1, "stop_token_ids": [7], "presence_penalty": 0.5, "repetition_penalty": 1.1, "request_id": "r", "cache_salt": "s",
        "speculation": {"rule": "match", "num_speculative_tokens": "adaptive", "lenience": 1.0},
    },
    "/v1/responses": {
        "model": "dummy:tiny", "instructions": "t1", "max_output_tokens": 3, "temperature": 0.5, "stream": True,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "t2 t3"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "t4"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "t5"},
        ],
        "tools": [
            {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"a": {}}}, "strict": False},
            {"type": "namespace", "name": "s", "description": "", "tools": [{"type": "function", "name": "g"}]},
            {"type": "custom", "name": "p"}, {"type": "web_search"},
        ],
        # The tiny model's tokenizer can't keep to a grammar.
        "tool_choice": "none", "text": {"format": {"type": "text"}, "verbosity": "low"},
        "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "top_logprobs": 1, "metadata": {"a": "b"},
    },
    "/v1/messages": {
        "model": "dummy:tiny", "max_tokens": 3, "stream": True, "stop_sequences": ["t9"], "top_k": 3,
        "system": [{"type": "text", "text": "t1", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "t2"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "t3", "signature": ""}, {"type": "text", "text": "t4"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "t5", "is_error": True}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "bash_20250124", "name": "bash"}],
        "tool_choice": {"type": "none", "disable_parallel_tool_use": True}, "thinking": {"type": "adaptive"},
        "output_config": {"effort": "high"},
    },
    "/v1/messages/count_tokens": {"model": "dummy:tiny", "messages": [{"role": "user", "content": "t2"}]},
    "/infill": {
        "input_prefix": "t1", "input_suffix": "t2", "input_extra": [{"text": "t3", "filename": "a", "time": [1, 2]}],
        "prompt": "t4", "n_predict": 3, "temperature": 0.0, "top_k": 40, "top_p": 0.99, "seed": -1, "stop": ["t9"],
        "samplers": ["top_k", "infill"], "stream": True, "response_fields": ["content", "timings/prompt_n"],
    },
    "/tokenize": {"prompt": "t1 t2", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}  # fmt: skip
# By path: what limits texts that have no limit of their own.
UNLIMITED = {
    "/v1/chat/completions": "max_completion_tokens", "/v1/responses": "max_output_tokens", "/v1/messages": "max_tokens",
    "/infill": "n_predict",
}  # fmt: skip
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -1e308, 1e308, 10**30, -(2**63), 2**63 - 1, 2**64 - 1, 2**64, "", "x", "\x00", "😀" * 50,
    "\u202e\ufeff\U0010ffff", "t1 " * 3000, "x" * 200_000, "9" * 5000, "１", [], {}, [None], [[]], {"a": {"b": {}}}, ["t1", 1],
    [-1], [2**31], [2**31 - 1], [10**6] * 20, list(range(5000)), {"": 0}, {"type": "text"}, "true", "NaN", "-0", "\ud7ff",
    {"messages": [], "add_generation_prompt": 1, "tokenize": True}, {"4294967296": 1}, {str(each): 1 for each in range(2000)},
]  # fmt: skip
# What json.dumps does not write; each stands where "<raw N>" stood.
RAW = [
    *(b"[" * depth + b"]" * depth for depth in (50, 200, 500, 900, 990, 1020, 1100, 100_000)),
    *(b'{"a":' * depth + b"1" + b"}" * depth for depth in (50, 500, 900, 1020, 20_000)),
    b"NaN", b"-Infinity", b"1e999", b"-1e-999", b"9" * 5000, b"0." + b"0" * 5000 + b"1", b"01", b"1.",
    rb'"\ud800"', rb'"\udc00\ud800"', rb'"\u0000"', b'"\xff\xfe"', b'"\xed\xa0\x80"', b'"\xc0\x80"', b'"\xf4\x90\x80\x80"',
]  # fmt: skip
FIELDS = [
    *sorted(chat.FIELDS.known),
    *sorted(completions.FIELDS.known),
    *sorted(responses.FIELDS.known),
    *sorted(messages.FIELDS.known),
    "__class__",
    "",
    "\x00",
    "😀",
    "x" * 5000,
    "a.b[0]",
]
TYPES = (
    "text/plain", "", "application/xml", "application/json; charset=utf-16", "APPLICATION/JSON ;", "application/jsonx",
    "multipart/form-data", "application/x-www-form-urlencoded", "application/json, text/plain", ";" * 1000,
)  # fmt: skip
LONG = {"prompt": "t4 t8", "max_tokens": 450, "temperature": 0, "ignore_eos": True, "stream": True}


@dataclass(frozen=True, slots=True)
class Mutation:
    path: str
    data: bytes
    content_type: str
    is_chunked: bool

    async def parts(self) -> AsyncIterator[bytes]:
        step = max(1, len(self.data) // 7)
        for at in range(0, len(self.data), step):
            yield self.data[at : at + step]


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a body with each of its keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places_of(value[key])]


def strange(rng: random.Random) -> Any:
    return f"<raw {rng.randrange(len(RAW))}>" if rng.random() < 0.25 else json.loads(json.dumps(rng.choice(STRANGE)))


def mutate_value(rng: random.Random, body: dict[str, Any]) -> None:
    """One change: a value goes, moves, is repeated or replaced, or a field comes."""
    container, key = rng.choice(places_of(body) or [(body, "prompt")])
    what = rng.random()
    if what < 0.15:
        container.pop(key, None) if isinstance(container, dict) else container.pop(key)
    elif what < 0.25 and isinstance(container, dict):
        container[rng.choice(FIELDS)] = container.pop(key, None)
    elif what < 0.4 and isinstance(container, dict):
        container[rng.choice(FIELDS)] = strange(rng)
    elif what < 0.5 and key in (container if isinstance(container, dict) else range(len(container))):
        container[key] = [container[key]] * rng.choice((1, 2, 100))
    else:
        container[key] = strange(rng)


def mutate_bytes(rng: random.Random, data: bytes) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.randint(1, 12)
    changes: list[Callable[[], bytes]] = [
        lambda: data[:at] + rng.randbytes(length) + data[at + length :],
        lambda: data[:at] + rng.choice(b'{}[]",:\\0eE-').to_bytes(1, "big") + data[at + 1 :],
        lambda: data[:at] + data[at + length :],
        lambda: data[:at] + data[max(0, at - length) :],
        lambda: data[:at],
        lambda: b"\xef\xbb\xbf" + data,
        lambda: data.decode(errors="replace").encode("utf-16"),
        lambda: data * 2,
        lambda: b" \t\r\n" * 50 + data,
    ]
    return rng.choice(changes)()


def mutate(number: int) -> Mutation:
    """A body that was good but for a few changes; now and then its bytes, its type, or how it is sent. The same number
    gives the same request."""
    rng = random.Random(number)
    path = rng.choice(list(BODIES))
    body = json.loads(json.dumps(BODIES[path]))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3))):
        mutate_value(rng, body)
    # Accepted or not, nobody waits for long texts.
    for name, most in (
        ("max_tokens", 4),
        ("max_completion_tokens", 4),
        ("max_output_tokens", 4),
        ("n_predict", 4),
        ("n", 4),
    ):
        if isinstance(body.get(name), int | float) and body[name] in range(most + 1, 10_000):
            body[name] = most
    for of_path, name in UNLIMITED.items():
        if path == of_path and body.get("max_tokens") is None:
            body.setdefault(name, 4)
    data = json.dumps(body, ensure_ascii=rng.random() < 0.5).encode()
    for index, raw in enumerate(RAW):
        data = data.replace(f'"<raw {index}>"'.encode(), raw)
    if rng.random() < 0.15:
        data = mutate_bytes(rng, data)
    kind = "application/json" if rng.random() < 0.95 else rng.choice(TYPES)
    return Mutation(path, data, kind, is_chunked=rng.random() < 0.3)


async def send(http: httpx2.AsyncClient, number: int) -> int:
    """The status. Fails for a 5xx, and for an answer that is not whole."""
    asked = mutate(number)
    content = asked.parts() if asked.is_chunked else asked.data
    seen = (number, asked.path, asked.data[:500])
    try:
        async with asyncio.timeout(TIMEOUT_S):
            response = await http.post(asked.path, content=content, headers={"content-type": asked.content_type})
    except (TimeoutError, httpx2.TransportError) as error:
        raise AssertionError(*seen, f"no answer: {error!r}") from error
    assert response.status_code < 500, (*seen, response.text)
    if response.status_code != 200:
        error = response.json()["error"]
        assert set(error) == (ANTHROPIC_SHAPE if asked.path.startswith("/v1/messages") else SHAPE), seen
        assert error["message"], seen
        assert isinstance(error["type"], str), seen
    elif response.headers["content-type"].startswith("text/event-stream"):
        # On a slow machine a stream is open before its request is refused.
        assert response.text.rstrip().rpartition("\n\n")[2].startswith((*ENDS, *FAILURES)), seen
        assert "internal error" not in response.text, (*seen, response.text[-500:])
    else:
        assert response.json(), seen
    return response.status_code


async def stream_text(http: httpx2.AsyncClient) -> str:
    text, is_done = "", False
    async with http.stream("POST", "/v1/completions", json=LONG) as response:
        async for line in response.aiter_lines():
            is_done = is_done or line == "data: [DONE]"
            if line.startswith("data: {"):
                text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    assert is_done
    return text


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.campaign)])
async def test_no_mutated_request_breaks_the_door_or_disturbs_a_bystander(
    gateway_service: RunningGateway, count: int
) -> None:
    numbers, counts, failures = iter(range(count)), collections.Counter[int](), []
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=TIMEOUT_S) as http:
        alone = await stream_text(http)

        async def work() -> None:
            for number in numbers:
                try:
                    counts[await send(http, number)] += 1
                except AssertionError as failure:
                    failures.append(failure)

        workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
        num_streams = 0
        while num_streams == 0 or not all(worker.done() for worker in workers):
            assert await stream_text(http) == alone
            num_streams += 1
        await asyncio.gather(*workers)
    print(dict(counts), num_streams, "streams beside them")
    assert not failures, (len(failures), failures[:20])
    # Both kinds come: a test of refusals alone would say nothing of what lies behind them.
    assert counts[200] > count / 20, counts
    assert counts[400] > count / 4, counts
