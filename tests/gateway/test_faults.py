"""Processes die and clients dawdle: answers go on where they can, and a stream says what happened where not."""

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from paceline.client import AsyncClient
from tests.conftest import SMALL_FLAGS, TINY
from tests.draft_heads import write_head
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.hosted import Host
from tests.services import Service, Trio, free_port, restart, running, spawn_service, start_service
from tests.thinking import write_thinking_model

pytestmark = pytest.mark.slow

PROMPTS = [f"t{number} t{number + 7}" for number in range(5)]
BODY: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
NUM_TOKENS = 200
LONG: dict[str, Any] = {
    "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
}  # fmt: skip


@pytest.fixture
def coordinator(tiny_trio: Trio, tmp_path: Path) -> Iterator[Service]:
    """A process in front of the shared servers."""
    servers = ("--draft", tiny_trio.draft.address, "--target", tiny_trio.target.address)
    started = start_service("coordinator", tmp_path, *servers)
    with running(started):
        yield started


async def lines_of(response: httpx2.Response) -> AsyncIterator[Any]:
    """The stream's events, and None for [DONE]."""
    async for line in response.aiter_lines():
        # Comments tell that the answer is waited for.
        if line.startswith("data: "):
            event = line.removeprefix("data: ")
            yield None if event == "[DONE]" else orjson.loads(event)


async def follow(http: httpx2.AsyncClient, body: dict[str, Any], begun: asyncio.Queue[str] | None = None) -> list[Any]:
    events = []
    async with http.stream("POST", "/v1/completions", json={**LONG, **body}) as response:
        async for event in lines_of(response):
            if not events and begun is not None:
                begun.put_nowait(body["prompt"])
            events.append(event)
    return events


def text_of(events: list[Any]) -> dict[int, str]:
    """The text of each choice of a stream that came to its end, with each token counted once."""
    assert events[-1] is None
    assert "error" not in events[-2]
    texts: dict[int, str] = {}
    for event in events[:-1]:
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + choice["text"]
    assert events[-2]["usage"]["completion_tokens"] == NUM_TOKENS * len(texts)
    assert events[-2]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
    return texts


async def begin(http: httpx2.AsyncClient, bodies: list[dict[str, Any]]) -> list[asyncio.Task[list[Any]]]:
    """Streams of which each has begun."""
    begun: asyncio.Queue[str] = asyncio.Queue()
    following = [asyncio.create_task(follow(http, body, begun)) for body in bodies]
    for _ in bodies:
        await begun.get()
    return following


SEEDED: list[dict[str, Any]] = [
    {"prompt": prompt, "temperature": 0.8 if number % 2 else 0, "seed": number, "n": 1 + number % 3}
    for number, prompt in enumerate(PROMPTS)
]


@pytest.fixture(scope="module")
def undisturbed(gateway_service: RunningGateway) -> list[dict[int, str]]:
    """The texts of SEEDED, from a coordinator that lives."""

    async def ask() -> list[dict[int, str]]:
        async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
            return [text_of(events) for events in await asyncio.gather(*(follow(http, body) for body in SEEDED))]

    return asyncio.run(ask())


async def test_another_coordinator_goes_on_with_the_answers_of_one_that_died(
    start_gateway: StartGateway, tiny_trio: Trio, coordinator: Service, undisturbed: list[dict[int, str]]
) -> None:
    gateway_service = start_gateway(tiny_trio, "--coordinators", f"{coordinator.address},{tiny_trio.address}")
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        following = await begin(http, SEEDED)
        async with AsyncClient(coordinator.address) as client:
            assert (await client.describe()).running > 0
        coordinator.kill()
        assert [text_of(events) for events in await asyncio.gather(*following)] == undisturbed


async def test_another_coordinator_goes_on_with_formats_that_a_head_drafts_for(
    start_gateway: StartGateway, host: Host, tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    write_thinking_model(tmp_path / "model")
    write_head(tmp_path / "head")
    flags = ("--model", f"{tmp_path}/model", *SMALL_FLAGS, "--draft-head", f"{tmp_path}/head")
    servers = ("--draft", "none", "--target", host.start("target_server", *flags).address)
    other, victim = host.start("coordinator", *servers), start_service("coordinator", tmp_path, *servers)
    listed = ("--coordinators", f"{victim.address},{other.address}")
    with running(victim):
        gateway_service = start_gateway(None, *listed)
        bodies = [
            body | {"guided_regex": f"([0-9][a-z]){{{NUM_TOKENS}}}", "ignore_eos": False, "n": 1} for body in SEEDED
        ]
        off, head = {"enabled": False}, {"drafter": "head", "num_speculative_tokens": 4}
        async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
            plain = await asyncio.gather(*(follow(http, body | {"speculation": off}) for body in bodies))
            following = await begin(http, [body | {"speculation": head} for body in bodies])
            async with AsyncClient(victim.address) as client:
                assert (await client.describe()).running > 0
            victim.kill()
            found = await asyncio.gather(*following)
    texts = [[text_of(events) for events in each] for each in (plain, found)]
    assert texts[0] == texts[1]
    # With `head` nothing else drafts.
    assert all(events[-2]["paceline"]["speculation"]["proposed"] > 0 for events in found)


async def test_another_coordinator_goes_on_with_the_answers_of_one_that_hangs(
    start_gateway: StartGateway, tiny_trio: Trio, coordinator: Service, undisturbed: list[dict[int, str]]
) -> None:
    gateway_service = start_gateway(tiny_trio, "--coordinators", f"{coordinator.address},{tiny_trio.address}")
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        following = await begin(http, SEEDED)
        coordinator.process.send_signal(signal.SIGSTOP)
        try:
            assert [text_of(events) for events in await asyncio.gather(*following)] == undisturbed
            assert (await http.get("/v1/models")).status_code == 200
        finally:
            coordinator.process.send_signal(signal.SIGCONT)


async def test_coordinators_are_those_of_a_file_as_it_is_now(
    start_gateway: StartGateway,
    tiny_trio: Trio,
    coordinator: Service,
    undisturbed: list[dict[int, str]],
    tmp_path: Path,
) -> None:
    path = tmp_path / "coordinators"
    gateway_service = start_gateway(tiny_trio, "--coordinators", f"file:{path}", "--retry-timeout", "0")
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        refused = await http.post("/v1/completions", json={**BODY, "prompt": "t1"})
        assert (refused.status_code, refused.json()["error"]["message"]) == (
            503,
            f"there is no coordinator: file:{path}",
        )
        path.write_text(f"{coordinator.address}\n")
        async with asyncio.timeout(60):
            while (await http.get("/ready")).status_code != 200:
                await asyncio.sleep(0.05)
        following = await begin(http, SEEDED)
        path.write_text(f"{tiny_trio.address}\n")
        # Answers under way end where they began, and new ones begin elsewhere.
        assert [text_of(events) for events in await asyncio.gather(*following)] == undisturbed
        coordinator.kill()
        again = await asyncio.gather(*(follow(http, body) for body in SEEDED))
        assert [text_of(events) for events in again] == undisturbed


async def test_answers_wait_for_a_coordinator_of_the_same_model(
    start_gateway: StartGateway,
    tiny_trio: Trio,
    coordinator: Service,
    undisturbed: list[dict[int, str]],
    tmp_path: Path,
) -> None:
    """During an upgrade two sets of weights stand side by side."""
    path, other = tmp_path / "coordinators", f"unix:{tmp_path}/other.sock"
    target = spawn_service("target_server", tmp_path, *TINY, "--kv-cache-dtype", "int8")
    path.write_text(f"{coordinator.address}\n")
    gateway_service = start_gateway(tiny_trio, "--coordinators", f"file:{path}")
    with running(target):
        await asyncio.to_thread(target.wait_serving)
        flags = ("--target", target.address, "--draft", "none")
        newer = await asyncio.to_thread(start_service, "coordinator", tmp_path, *flags, address=other)
        async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
            with running(newer):
                following = await begin(http, SEEDED)
                path.write_text(f"{coordinator.address}\n{other}\n")
                await asyncio.sleep(1.0)
                coordinator.kill()
                await asyncio.sleep(1.0)
                # What is new is answered by the other.
                assert (await http.post("/v1/completions", json={**BODY, "prompt": "t1"})).status_code == 200
                with running(await asyncio.to_thread(restart, coordinator)):
                    assert [text_of(events) for events in await asyncio.gather(*following)] == undisturbed


async def test_answers_go_on_when_the_only_coordinator_is_back(
    start_gateway: StartGateway, tiny_trio: Trio, coordinator: Service, undisturbed: list[dict[int, str]]
) -> None:
    gateway_service = start_gateway(tiny_trio, "--coordinators", coordinator.address)
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        following = await begin(http, SEEDED)
        coordinator.kill()
        new = asyncio.create_task(http.post("/v1/completions", json={**BODY, "prompt": "t1"}))
        with running(await asyncio.to_thread(restart, coordinator)):
            assert [text_of(events) for events in await asyncio.gather(*following)] == undisturbed
            assert (await new).status_code == 200


async def test_calls_go_on_when_the_only_coordinator_is_back(
    start_gateway: StartGateway, embedded_pair: Trio, tmp_path: Path
) -> None:
    schema = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    asked: dict[str, Any] = {
        "messages": [{"role": "user", "content": "Write down a long story."}], "max_tokens": 80, "seed": 4, "n": 3,
        "tools": [{"type": "function", "function": {"name": "write", "parameters": schema}}], "tool_choice": "required",
        # Long rounds when the answer is repeated, so that some begin in what the client has and end behind it.
        "parallel_tool_calls": False, "request_id": "story", "speculation": {"drafter": "ngram", "num_speculative_tokens": 8},
    }  # fmt: skip
    servers = ("--draft", embedded_pair.draft.address, "--target", embedded_pair.target.address)
    coordinator = start_service("coordinator", tmp_path, *servers)
    gateway_service = start_gateway(embedded_pair, "--coordinators", coordinator.address)
    deltas: dict[int, list[Any]] = {0: [], 1: [], 2: []}
    async with (
        httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.enter_context(running(coordinator))
        async with http.stream("POST", "/v1/chat/completions", json={**asked, "stream": True}) as response:
            async for event in lines_of(response):
                for choice in event["choices"] if event else ():
                    deltas[choice["index"]] += choice["delta"].get("tool_calls", ())
                if sum(map(len, deltas.values())) >= 40 and coordinator.process.poll() is None:
                    coordinator.kill()
                    stack.enter_context(running(await asyncio.to_thread(restart, coordinator)))
        whole = (await http.post("/v1/chat/completions", json=asked)).json()
    for choice in whole["choices"]:
        [call] = choice["message"]["tool_calls"]
        first, *rest = deltas[choice["index"]]
        assert (first["id"], first["function"]["name"]) == (call["id"], call["function"]["name"])
        assert all("id" not in each for each in rest)
        assert "".join(each["function"]["arguments"] for each in rest) == call["function"]["arguments"]


async def test_without_a_coordinator_for_longer_than_the_retry_timeout_answers_end_with_an_error(
    start_gateway: StartGateway, tiny_trio: Trio, coordinator: Service
) -> None:
    # Longer than gRPC pauses between two attempts to connect: who comes when the coordinator is back is served.
    gateway_service = start_gateway(tiny_trio, "--coordinators", coordinator.address, "--retry-timeout", "4")
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        following = await begin(http, SEEDED)
        coordinator.kill()
        for events in await asyncio.gather(*following):
            assert events[-2]["error"]["code"] == "unavailable"
            assert events[-1] is None
        refused = await http.post("/v1/completions", json={**BODY, "prompt": "t1"})
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        with running(await asyncio.to_thread(restart, coordinator)):
            assert (await http.post("/v1/completions", json={**BODY, "prompt": "t1"})).status_code == 200


async def test_sigterm_lets_open_streams_end(gateway_service: RunningGateway, tmp_path: Path) -> None:
    listen = f"127.0.0.1:{free_port()}"
    gateway = spawn_service("gateway", tmp_path, "--coordinators", gateway_service.trio.address, address=listen)
    with running(gateway):
        transport = httpx2.AsyncHTTPTransport(retries=100)
        async with httpx2.AsyncClient(base_url=f"http://{listen}", timeout=60, transport=transport) as http:
            async with asyncio.timeout(60):
                await http.get("/health")
            following = await begin(http, [{"prompt": prompt} for prompt in PROMPTS])
            assert await asyncio.to_thread(gateway.stop) == 0
            for events in await asyncio.gather(*following):
                assert events[-1] is None
                assert events[-2]["usage"]["completion_tokens"] == NUM_TOKENS


async def test_who_does_not_read_holds_nobody_up_and_misses_nothing(gateway_service: RunningGateway) -> None:
    body = orjson.dumps({**LONG, "prompt": "t1", "n": 16, "logprobs": 20, "trace": True})
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.connect(("127.0.0.1", int(gateway_service.url.rpartition(":")[2])))
        reader, writer = await asyncio.open_connection(sock=raw, limit=2**20)
        head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n"
        writer.write(head.encode() + body)
        writer.transport.pause_reading()
        async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
            for prompt in PROMPTS:
                assert (await http.post("/v1/completions", json={**BODY, "prompt": prompt})).status_code == 200
        writer.transport.resume_reading()
        events = [orjson.loads(line[6:]) async for line in reader if line.startswith(b"data: {")]
        assert events[-1]["usage"]["completion_tokens"] == 16 * NUM_TOKENS
        writer.close()
