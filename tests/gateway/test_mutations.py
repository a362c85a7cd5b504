"""Mutated requests: never a 5xx, never a hang, errors in OpenAI's shape, and a bystander who notices nothing."""

import asyncio
import collections
import copy
import json
import random
from typing import Any

import httpx2
import pytest

from tests.gateway.conftest import Door

TIMEOUT_S = 60
AT_ONCE = 8
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "dummy:tiny", "messages": [{"role": "system", "content": "t1"}, {"role": "user", "content": "t2 t3"}],
        "max_tokens": 3, "temperature": 0.5, "top_p": 0.9, "seed": 1, "stop": ["t9"], "logprobs": True, "top_logprobs": 2,
        "stream": True, "stream_options": {"include_usage": True}, "logit_bias": {"5": 1.5}, "n": 1,
        "speculation": {"enabled": True, "drafter": "model", "draft_tokens": 2}, "trace": True,
        "prediction": {"type": "content", "content": "t2 t3 t4"},
    },
    "/v1/completions": {
        "prompt": [3, 14, 15], "max_tokens": 3, "temperature": 0, "logprobs": 2, "echo": True, "n": 2, "top_k": 4,
        "min_tokens": 1, "stop_token_ids": [7], "presence_penalty": 0.5, "repetition_penalty": 1.1, "request_id": "r",
    },
    "/tokenize": {"prompt": "t1 t2", "add_special_tokens": True, "return_token_strs": True},
    "/detokenize": {"tokens": [1, 2, 3]},
}  # fmt: skip
STRANGE: list[Any] = [
    None, True, False, 0, -1, 1, 2, 1.5, -1e308, 1e308, 10**30, -(2**63), 2**64, "", "x", "\x00", "😀" * 50, "t1 " * 3000, [], {},
    [None], [[]], [[[[]]]], {"a": {"b": {}}}, ["t1", 1], [-1], [2**31], [10**6] * 20, {"type": "text"}, "true", "NaN", "\ud7ff",
]  # fmt: skip
LONG = {"prompt": "t4 t8", "max_tokens": 450, "temperature": 0, "ignore_eos": True}


def places_of(value: Any) -> list[tuple[Any, Any]]:
    """Each container in a body with each of its keys."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [(value, key) for key in keys] + [place for key in keys for place in places_of(value[key])]


def mutate(rng: random.Random) -> tuple[str, bytes, dict[str, str]]:
    """A path, and a body that was good but for a few changes; now and then bytes of it, or the headers."""
    path = rng.choice(list(BODIES))
    body = json.loads(json.dumps(BODIES[path]))
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        container, key = rng.choice(places_of(body))
        what = rng.random()
        if what < 0.2:
            del container[key]
        elif what < 0.3 and isinstance(container, dict):
            container[f"{key}x"] = container.pop(key)
        elif what < 0.4:
            container[key] = [copy.deepcopy(container[key]) for _ in range(rng.choice((1, 2, 100)))]
        else:
            container[key] = copy.deepcopy(rng.choice(STRANGE))
        if not places_of(body):
            break
    # Accepted or not, nobody waits for long texts.
    for name in ("max_tokens", "max_completion_tokens"):
        if isinstance(body.get(name), int) and body[name] > 8:
            body[name] = 8
    data = bytearray(json.dumps(body, ensure_ascii=rng.random() < 0.5).encode(errors="surrogatepass"))
    if rng.random() < 0.15:
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
    headers = {
        "content-type": "application/json" if rng.random() < 0.95 else rng.choice(("text/plain", "", "application/xml"))
    }
    return path, bytes(data), headers


async def send(
    http: httpx2.AsyncClient, asked: tuple[str, bytes, dict[str, str]], counts: collections.Counter[int]
) -> None:
    path, data, headers = asked
    async with asyncio.timeout(TIMEOUT_S):
        response = await http.post(path, content=data, headers=headers)
    counts[response.status_code] += 1
    assert response.status_code < 500, (path, data[:500], response.text)
    if response.status_code != 200:
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}, (path, data[:500])
        assert response.json()["error"]["message"], (path, data[:500])
    elif response.headers["content-type"].startswith("text/event-stream"):
        assert response.text.endswith("data: [DONE]\n\n"), (path, data[:500])
        assert '"error"' not in response.text, (path, data[:500], response.text[-500:])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("count", [300, pytest.param(5000, marks=pytest.mark.slow)])
async def test_no_mutated_request_breaks_the_door_or_disturbs_a_bystander(door: Door, count: int) -> None:
    rng, counts = random.Random(count), collections.Counter[int]()
    mutations = iter([mutate(rng) for _ in range(count)])
    limits = httpx2.Timeout(TIMEOUT_S)
    async with httpx2.AsyncClient(base_url=door.url, timeout=limits) as http:
        alone = (await http.post("/v1/completions", json=LONG)).json()["choices"][0]["text"]

        async def work() -> None:
            for asked in mutations:
                await send(http, asked, counts)

        async def stand_by(workers: list[asyncio.Task[None]]) -> None:
            while not all(worker.done() for worker in workers):
                beside = await http.post("/v1/completions", json=LONG)
                assert beside.json()["choices"][0]["text"] == alone

        workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
        await stand_by(workers)
        await asyncio.gather(*workers)
    # Both kinds come: a test of refusals alone would say nothing of the door behind them.
    assert counts[200] > count / 20, counts
    assert counts[400] > count / 4, counts
    print(counts)
