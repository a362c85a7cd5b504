"""A prompt that is kept in a file is cached before anybody asks for it, also after the target starts again."""

import asyncio
import json
import weakref
from pathlib import Path
from typing import Any

import pytest

from coordinator.remote.pool import Endpoint
from coordinator.request import Request
from coordinator.warmup_prompt import WarmupPrompt
from paceline.client import AsyncClient
from paceline.errors import ConfigError, ResourceExhausted
from paceline.sampling_params import SamplingParams
from tests.coordinator.pools import pool_of
from tests.hosted import Host
from tests.services import Trio

TOOLS = [
    {"type": "function", "function": {"name": f"tool_{at}", "description": "Reads a file. " * 20}} for at in range(4)
]  # fmt: skip
FLAGS = ("--kv-cache-memory", "128MiB", "--max-model-len", "1024", "--threads", "1")
TIMEOUT_S = 60


async def cached_tokens(trio: Trio, question: str, tools: list[Any]) -> int:
    chat = [{"role": "user", "content": question}]
    async with AsyncClient(trio.address) as client:
        done = await client.complete(chat, SamplingParams(max_tokens=1), tools=tools or None)
    assert done.finish is not None
    return done.finish.cached_prompt_tokens


async def wait_for_log(trio: Trio, words: str, count: int = 1) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while trio.coordinator.log.read_text().count(words) < count:
            await asyncio.sleep(0.1)


async def test_the_first_prompt_with_tools_is_cached_again_after_a_restart(host: Host, tmp_path: Path) -> None:
    keep = ("--warmup-prompt", str(tmp_path / "prompt.json"))
    first = host.start_trio(FLAGS, FLAGS, keep)
    await cached_tokens(first, "Without tools.", [])
    assert not (tmp_path / "prompt.json").exists()
    assert await cached_tokens(first, "One?", TOOLS) == 0
    async with asyncio.timeout(TIMEOUT_S):
        while not (tmp_path / "prompt.json").exists():
            await asyncio.sleep(0.05)
    recorded = (tmp_path / "prompt.json").read_text()
    await cached_tokens(first, "Two?", TOOLS[:1])
    again = host.start_trio(FLAGS, FLAGS, keep)
    await wait_for_log(again, "tokens are cached")
    assert await cached_tokens(again, "Another question?", TOOLS) >= 64
    assert (tmp_path / "prompt.json").read_text() == recorded


def test_a_file_of_another_model_is_replaced_and_a_bad_one_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompt.json"
    for content in ("", "{}", "[1]", '{"model": "tiny", "cache_salt": "", "token_ids": ["x"]}'):
        path.write_text(content)
        with pytest.raises(ConfigError, match="warmup_prompt: "):
            WarmupPrompt(path, "tiny", 100, 64)
    for other in ({"model": "large"}, {"token_ids": [100]}, {"token_ids": [1] * 65}):
        path.write_text(json.dumps({"model": "tiny", "cache_salt": "", "token_ids": [1]} | other))
        WarmupPrompt(path, "tiny", 100, 64)


async def test_a_target_that_refused_is_asked_again_and_one_that_left_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INTERVAL_S", "RETRY_S"):
        monkeypatch.setattr(f"coordinator.warmup_prompt.{name}", 0.001)
    path, pool, asked = tmp_path / "prompt.json", pool_of("a", "b"), list[str]()
    path.write_text(json.dumps({"model": "tiny", "cache_salt": "", "token_ids": [1]}))
    for each in pool.endpoints:
        each.link.epoch = 1

    async def read(request: Request, endpoint: Endpoint) -> None:
        asked.append(endpoint.link.address)
        if asked == ["a", "b"]:
            raise ResourceExhausted("full")

    keeping = asyncio.create_task(WarmupPrompt(path, "tiny", 100, 64).keep(pool, read))
    try:
        async with asyncio.timeout(TIMEOUT_S):
            while len(asked) < 3:
                await asyncio.sleep(0.001)
            left = weakref.ref(pool.endpoints.pop(0))
            pool.endpoints[0].link.epoch = 2
            while left() or len(asked) < 4:
                await asyncio.sleep(0.001)
    finally:
        keeping.cancel()
    assert asked == ["a", "b", "b", "b"]
