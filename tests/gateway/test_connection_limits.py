"""No connection costs more than its bounds: in bytes, in requests, in time, in number."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import orjson
import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

import gateway.http
from gateway.__main__ import GatewayServer
from gateway.http import (
    MAX_HEADER_BYTES,
    MAX_HEADERS,
    MAX_PIPELINED,
    MIN_READ_BYTES_PER_S,
    READ_TIMEOUT_S,
    Connections,
    HttpConnection,
)
from tests.services import free_port

GET = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"
LAST = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
PART = bytes(1 << 16)
# More than the kernel's buffers hold.
NUM_PARTS = 1024
# For what must end by itself: far more than the shortened timers.
PATIENCE_S = 30.0


class App:
    """Answers at once; POST after its body; /long without end, as far as the client reads."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.num_parts = 0
        self.has_begun, self.is_over = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.headers = scope["headers"]
        self.has_begun.set()
        while scope["method"] == "POST" and (await receive()).get("more_body"):
            pass
        length = len(PART) * NUM_PARTS if scope["path"] == "/long" else 2
        start = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % length)]}
        await send(start)
        if scope["path"] == "/long":
            for _ in range(NUM_PARTS):
                await send({"type": "http.response.body", "body": PART, "more_body": True})
                self.num_parts += 1
        await send({"type": "http.response.body", "body": b"ok" if length == 2 else b""})
        self.is_over.set()


Serve = Callable[..., AbstractAsyncContextManager[tuple[App, int]]]


@asynccontextmanager
async def serving(limit: int = 1000) -> AsyncIterator[tuple[App, int]]:
    """Yields the app, and its port."""
    app, port = App(), free_port()
    http = partial(HttpConnection, connections=Connections(limit))
    server = GatewayServer(
        uvicorn.Config(
            app,
            host="127.0.0.1",
            port=port,
            http=http,
            ws="none",
            lifespan="off",
            log_config=None,
            timeout_keep_alive=60,
        )  # type: ignore[arg-type]
    )
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        async with asyncio.timeout(PATIENCE_S):
            yield app, port
    finally:
        server.force_exit = server.should_exit = True
        await task


@pytest.fixture
def short_timers(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_TIMEOUT_S", "BODY_TIMEOUT_S", "READ_TIMEOUT_S"):
        monkeypatch.setattr(gateway.http, name, 0.2)
    monkeypatch.setattr(gateway.http, "MIN_READ_BYTES_PER_S", 1 << 30)


async def ask(port: int, *parts: bytes) -> bytes:
    """Returns all that comes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await writer.drain()
    try:
        return await reader.read()
    finally:
        writer.close()


async def ended(reader: asyncio.StreamReader) -> bool:
    """Returns whether the connection ends without an answer."""
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "head",
    [b"x: " + b"y" * MAX_HEADER_BYTES + b"\r\n", b"x: y\r\n" * MAX_HEADERS, (b"x: " + b"y" * 1000 + b"\r\n") * 66],
    ids=["one", "many", "long"],
)
async def test_headers_in_one_piece_are_bounded(head: bytes) -> None:
    async with serving() as (_, port):
        answer = await ask(port, b"GET / HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n")
        assert status_of(answer) == 431
        assert str(MAX_HEADERS) in orjson.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
        assert status_of(await ask(port, LAST)) == 200


async def test_a_long_path_is_refused_as_headers_are() -> None:
    async with serving() as (_, port):
        answer = await ask(port, b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert status_of(answer) == 431


@pytest.mark.parametrize(
    "rest",
    [b"0\r\n" + b"a: b\r\n" * (MAX_HEADERS + 1), b"0\r\n" + (b"a: " + b"b" * 1000 + b"\r\n") * 70,
     b"0\r\na: " + b"b" * MAX_HEADER_BYTES, b"1;" + b"x" * MAX_HEADER_BYTES],
    ids=["many trailers", "long trailers", "one trailer", "extension"],
)  # fmt: skip
async def test_what_comes_beside_a_body_is_bounded_and_no_header(rest: bytes) -> None:
    async with serving() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED + b"1\r\nx\r\n")
        await app.has_begun.wait()
        writer.write(rest)
        assert status_of(await reader.read()) == 431
        writer.close()
        assert [name for name, _ in app.headers] == [b"host", b"transfer-encoding"]


async def test_trailers_are_ignored() -> None:
    async with serving() as (app, port):
        answer = await ask(port, CHUNKED + b"1\r\nx\r\n0\r\nauthorization: Bearer x\r\n\r\n" + LAST)
        assert answer.count(b"HTTP/1.1 200 ") == 2
        assert [name for name, _ in app.headers] == [b"host", b"connection"]


async def test_requests_behind_one_another_are_bounded() -> None:
    async with serving() as (_, port):
        answer = await ask(port, *([GET] * (MAX_PIPELINED // 2)), LAST)
        assert answer.count(b"HTTP/1.1 200 ") == MAX_PIPELINED // 2 + 1
        # More of them in one chunk than may wait.
        answer = await ask(port, GET * (MAX_PIPELINED + 2))
        assert answer.count(b"HTTP/1.1 200 ") == MAX_PIPELINED + 1
        assert answer.count(b"HTTP/1.1 429 ") == 1


@pytest.mark.usefixtures("short_timers")
@pytest.mark.parametrize(
    "begun",
    [b"", b"\r\n", GET + b"GET", CHUNKED, CHUNKED + b"1\r\nx\r\n0\r\nx:"],
    ids=["silent", "line end", "second", "body", "trailer"],
)
async def test_a_connection_without_a_whole_request_ends(begun: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer_at_once(self: App, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    monkeypatch.setattr(App, "__call__", answer_at_once)
    async with serving() as (_, port):
        await ask(port, begun)


@pytest.mark.usefixtures("short_timers")
async def test_a_line_end_after_a_response_does_not_stop_the_clock() -> None:
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(GET)
        await reader.readuntil(b"ok")
        writer.write(b"\r\n")
        await reader.read()
        writer.close()


@pytest.mark.usefixtures("short_timers")
async def test_a_body_that_nobody_reads_ends_however_it_trickles(monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer_at_once(self: App, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    monkeypatch.setattr(App, "__call__", answer_at_once)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(CHUNKED)
        reading = asyncio.create_task(reader.read())
        while not reading.done():
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.02)
        assert not reading.exception()
        assert status_of(reading.result()) == 404


@pytest.mark.usefixtures("short_timers")
@pytest.mark.parametrize("version", [b"1.1", b"1.0"])
async def test_a_response_that_is_not_read_ends(version: bytes) -> None:
    async with serving() as (app, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
        writer.write(b"GET /long HTTP/" + version + b"\r\nhost: localhost\r\n\r\n")
        # The app goes on once its client is gone.
        await app.is_over.wait()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionResetError)):
            await reader.readexactly(len(PART) * NUM_PARTS)
        writer.close()


async def test_a_response_that_is_read_slowly_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway.http, "READ_TIMEOUT_S", 5.0)
    async with serving() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /long HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        num_bytes = 0
        while part := await reader.read(1 << 20):
            num_bytes += len(part)
            await asyncio.sleep(0.002)
        assert num_bytes > len(PART) * NUM_PARTS
        writer.close()


async def test_the_kernel_keeps_no_more_than_is_read_in_time() -> None:
    """What it keeps is not counted, and it takes more only when a third of that is read."""
    async with serving() as (app, port):
        with socket.socket() as client:
            # Otherwise the client's kernel keeps megabytes too.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            client.connect(("127.0.0.1", port))
            client.sendall(b"GET /long HTTP/1.1\r\nhost: localhost\r\n\r\n")
            before = -1
            while before != app.num_parts or not before:
                before = app.num_parts
                await asyncio.sleep(0.1)
            assert app.num_parts * len(PART) < READ_TIMEOUT_S * MIN_READ_BYTES_PER_S


async def test_idle_connections_make_room_the_oldest_first() -> None:
    async with serving(limit=4) as (_, port):
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(4)]
        # One that has been used is younger than those that have not.
        idle[0][1].write(GET)
        await idle[0][0].readuntil(b"ok")
        assert status_of(await ask(port, LAST)) == 200
        assert await ended(idle[1][0])
        for at in (0, 2, 3):
            idle[at][1].write(LAST)
            assert status_of(await idle[at][0].read()) == 200
        for _, writer in idle:
            writer.close()


async def test_a_connection_beyond_those_at_work_is_refused() -> None:
    async with serving(limit=2) as (_, port):
        working = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        for _, writer in working:
            writer.write(CHUNKED)
        for _ in range(100):
            # Until both have begun, one of them makes room.
            answer = await ask(port, LAST)
            if status_of(answer) == 503:
                break
        assert status_of(answer) == 503
        for reader, writer in working:
            writer.write(b"0\r\n\r\n")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200 ")
            writer.close()
