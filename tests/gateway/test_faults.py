"""Processes die and clients dawdle: a stream says what happened, and others are served."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from tests.gateway.conftest import Door, OpenDoor, free_port
from tests.services import Service, Trio, running, spawn_service, start_service

PROMPTS = [f"t{number} t{number + 7}" for number in range(8)]
BODY: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
LONG: dict[str, Any] = {
    "max_tokens": 500, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


@pytest.fixture
def coordinators(tiny_trio: Trio, tmp_path: Path) -> Iterator[list[Service]]:
    """Two processes over one pair of servers."""
    servers = ("--draft", tiny_trio.draft.address, "--target", tiny_trio.target.address)
    with ExitStack() as stack:
        started = []
        for name in ("first", "second"):
            folder = tmp_path / name
            folder.mkdir()
            started.append(start_service("coordinator", folder, *servers))
            stack.enter_context(running(started[-1]))
        yield started


async def lines_of(response: httpx2.Response) -> AsyncIterator[Any]:
    """The stream's events, and None for [DONE]."""
    async for line in response.aiter_lines():
        if line:
            event = line.removeprefix("data: ")
            yield None if event == "[DONE]" else orjson.loads(event)


async def follow(http: httpx2.AsyncClient, prompt: str, begun: asyncio.Queue[str] | None = None) -> list[Any]:
    events = []
    async with http.stream("POST", "/v1/completions", json={**LONG, "prompt": prompt}) as response:
        async for event in lines_of(response):
            if not events and begun is not None:
                begun.put_nowait(prompt)
            events.append(event)
    return events


async def wait_for(http: httpx2.AsyncClient, status: int) -> httpx2.Response:
    async with asyncio.timeout(30):
        while (found := await http.post("/v1/completions", json={**BODY, "prompt": "t1"})).status_code != status:
            await asyncio.sleep(0.1)
    return found


async def test_a_coordinator_that_dies_ends_its_streams_with_an_error_and_the_other_serves_on(
    open_door: OpenDoor, tiny_trio: Trio, coordinators: list[Service]
) -> None:
    door = open_door(tiny_trio, "--coordinators", ",".join(each.address for each in coordinators))
    begun: asyncio.Queue[str] = asyncio.Queue()
    async with httpx2.AsyncClient(base_url=door.url, timeout=60) as http:
        following = [asyncio.create_task(follow(http, prompt, begun)) for prompt in PROMPTS]
        for _ in PROMPTS:
            await begun.get()
        coordinators[0].kill()
        streams = await asyncio.gather(*following)
        broken = [events for events in streams if "error" in events[-2]]
        assert 0 < len(broken) < len(PROMPTS), "prompts go to both"
        assert all(events[-1] is None for events in streams)
        assert all(events[-2]["error"]["code"] == "unavailable" for events in broken)
        whole = [events for events in streams if events not in broken]
        assert all(events[-2]["usage"]["completion_tokens"] == 500 for events in whole)
        for prompt in PROMPTS:
            assert (await http.post("/v1/completions", json={**BODY, "prompt": prompt})).status_code == 200

        coordinators[1].kill()
        refused = await wait_for(http, 503)
        assert int(refused.headers["retry-after"]) >= 1
        old = coordinators[0]
        again = await asyncio.to_thread(
            start_service, old.module, old.log.parent, *old.process.args[5:], address=old.address
        )
        with running(again):
            assert (await wait_for(http, 200)).json()["usage"]["completion_tokens"] == 4


async def test_sigterm_lets_open_streams_end(door: Door, tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    gateway = spawn_service("gateway", tmp_path, "--coordinators", door.trio.address, address=listen)
    with running(gateway):
        transport = httpx2.AsyncHTTPTransport(retries=100)
        async with httpx2.AsyncClient(base_url=f"http://{listen}", timeout=60, transport=transport) as http:
            async with asyncio.timeout(60):
                await http.get("/health")
            begun: asyncio.Queue[str] = asyncio.Queue()
            following = [asyncio.create_task(follow(http, prompt, begun)) for prompt in PROMPTS]
            for _ in PROMPTS:
                await begun.get()
            assert await asyncio.to_thread(gateway.stop) == 0
            for events in await asyncio.gather(*following):
                assert events[-1] is None
                assert events[-2]["usage"]["completion_tokens"] == 500


async def test_who_does_not_read_holds_nobody_up_and_misses_nothing(door: Door) -> None:
    body = orjson.dumps({**LONG, "prompt": "t1", "n": 16, "logprobs": 20, "trace": True})
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", int(door.url.rpartition(":")[2])))
        reader, writer = await asyncio.open_connection(sock=raw, limit=2**20)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.transport.pause_reading()
        async with httpx2.AsyncClient(base_url=door.url, timeout=60) as http:
            for prompt in PROMPTS:
                assert (await http.post("/v1/completions", json={**BODY, "prompt": prompt})).status_code == 200
        writer.transport.resume_reading()
        events = [orjson.loads(line[6:]) async for line in reader if line.startswith(b"data: {")]
        assert events[-1]["usage"]["completion_tokens"] == 16 * 500
        writer.close()
