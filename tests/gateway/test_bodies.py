"""Compressed bodies: gzip is served within the limit on sizes, other codings are refused by name."""

import gzip
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import orjson
import pytest
from starlette.requests import Request
from starlette.types import Message

from gateway.bodies import LARGE_BYTES, MAX_BODIES_AT_ONCE, MAX_VALUES, Bodies
from gateway.errors import HttpError
from tests.gateway.conftest import RunningGateway
from tests.gateway.test_connection import POST, answer_to, is_refused

BODY = orjson.dumps({"prompt": "t1 t2", "max_tokens": 4, "temperature": 0})
GZIP = gzip.compress(BODY)
LIMIT = 1 << 20


async def pieces_of(data: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


async def post(http: httpx2.AsyncClient, data: bytes, coding: str, chunk: int | None = None) -> httpx2.Response:
    """With a content-length, or in chunks of `chunk` bytes."""
    headers = {"content-type": "application/json", "content-encoding": coding}
    content = data if chunk is None else pieces_of(data, chunk)
    return await http.post("/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize("chunk", [None, 1, 30])
@pytest.mark.parametrize(
    ("coding", "data"),
    [("gzip", GZIP), ("GZip", GZIP), ("x-gzip", GZIP), ("identity", BODY), ("", BODY), ("identity, gzip", GZIP),
     ("gzip", gzip.compress(BODY[:9]) + gzip.compress(b"") + gzip.compress(BODY[9:]))],
    ids=["gzip", "case", "x-gzip", "identity", "none", "both", "members"],
)  # fmt: skip
async def test_a_compressed_body_is_served(
    http: httpx2.AsyncClient, coding: str, data: bytes, chunk: int | None
) -> None:
    plain, sent = await post(http, BODY, "identity"), await post(http, data, coding, chunk)
    assert sent.status_code == 200, sent.text
    assert sent.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize("chunk", [None, 30])
@pytest.mark.parametrize(
    "coding", ["deflate", "br", "zstd", "compress", "gzip, gzip", "br, gzip", "gzip;q=1", "nonsense"]
)
async def test_another_coding_is_refused_and_the_supported_one_named(
    http: httpx2.AsyncClient, coding: str, chunk: int | None
) -> None:
    response = await post(http, zlib.compress(BODY), coding, chunk)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (415, "content-encoding")
    assert error["message"] == f"content-encoding is '{coding}'; it must be gzip or identity"
    assert response.headers["accept-encoding"] == "gzip"


@pytest.mark.parametrize("chunk", [None, 7])
@pytest.mark.parametrize(
    "data",
    [GZIP[:-1], GZIP[:-9], GZIP[:5], b"", BODY, zlib.compress(BODY), GZIP[:-6] + b"\0" + GZIP[-5:], GZIP + b"x", GZIP + GZIP[:9],
     GZIP[:14] + b"\xff" * 9 + GZIP[23:]],
    ids=["no end", "cut", "header", "empty", "plain", "zlib", "checksum", "trailer", "second member", "damaged"],
)  # fmt: skip
async def test_damaged_gzip_data_is_refused(http: httpx2.AsyncClient, data: bytes, chunk: int | None) -> None:
    response = await post(http, data, "gzip", chunk)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "body")
    assert error["message"].startswith("the body is not valid gzip data: ")


async def test_a_coding_of_the_transfer_is_refused(gateway_service: RunningGateway) -> None:
    """A message's framing is not its content: RFC 9112, 6.1 and 6.3."""
    coded = POST + b"connection: close\r\ntransfer-encoding: gzip"
    chunks = b"\r\n\r\n%x\r\n" % len(GZIP) + GZIP + b"\r\n0\r\n\r\n"
    assert is_refused(await answer_to(gateway_service, coded + b", chunked" + chunks), 501)
    assert is_refused(await answer_to(gateway_service, coded + chunks), 400), "its end can't be known"


def request_of(*parts: bytes) -> Request:
    messages = iter(parts)

    async def receive() -> Message:
        part = next(messages, None)
        return {"type": "http.request", "body": part or b"", "more_body": part is not None}

    headers = [(b"content-type", b"application/json"), (b"content-encoding", b"gzip")]
    return Request({"type": "http", "headers": headers}, receive)


async def read(request: Request) -> dict[str, Any]:
    async with Bodies(LIMIT).read(request) as body:
        return body


BOMB = gzip.compress(b" " * (256 * LIMIT))


@pytest.mark.parametrize("data", [BOMB, gzip.compress(b"") * (LIMIT // 20 + 1)], ids=["bomb", "empty members"])
@pytest.mark.parametrize("chunk", [100_000_000, 65536])
async def test_the_limit_holds_for_what_is_sent_and_for_what_it_becomes(data: bytes, chunk: int) -> None:
    parts = [data[at : at + chunk] for at in range(0, len(data), chunk)]
    tracemalloc.start()
    try:
        with pytest.raises(HttpError) as caught:
            await read(request_of(*parts))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert caught.value.status == 413
    assert peak < 4 * LIMIT


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    text = b"{}" + b" " * (LIMIT - 2)
    assert await read(request_of(gzip.compress(text))) == {}
    with pytest.raises(HttpError, match="larger than"):
        await read(request_of(gzip.compress(text + b" ")))


async def test_a_connection_goes_on_after_a_bomb(http: httpx2.AsyncClient) -> None:
    refused = await post(http, BOMB, "gzip")
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")
    assert (await post(http, GZIP, "gzip")).status_code == 200


def body_of(value: bytes) -> bytes:
    return b'{"prompt": [' + b",".join([value] * (MAX_VALUES // 2)) + b"]}"


@pytest.mark.parametrize("value", [b"[]", b"{}", b"[[[[]]]]", b'",,"'])
async def test_a_body_of_too_many_values_is_not_parsed(value: bytes) -> None:
    data = body_of(value)
    tracemalloc.start()
    try:
        with pytest.raises(HttpError, match="too many values"):
            async with Bodies(16 * LIMIT).read(request_of(gzip.compress(data))):
                pass
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(data)


async def test_a_body_of_many_values_is_parsed() -> None:
    async with Bodies(16 * LIMIT).read(request_of(gzip.compress(body_of(b"1")))) as body:
        assert len(body["prompt"]) == MAX_VALUES // 2


async def test_large_bodies_held_at_once_are_bounded_and_small_ones_pass() -> None:
    bodies, large = Bodies(LIMIT), b'{"prompt": "' + b"x" * (LIMIT - 20) + b'"}'
    async with AsyncExitStack() as held:
        for _ in range(MAX_BODIES_AT_ONCE):
            await held.enter_async_context(bodies.read(request_of(gzip.compress(large))))
        with pytest.raises(HttpError) as caught:
            await held.enter_async_context(bodies.read(request_of(gzip.compress(large))))
        assert (caught.value.status, caught.value.code) == (429, "rate_limit_exceeded")
        assert await held.enter_async_context(bodies.read(request_of(GZIP))) == orjson.loads(BODY)
    async with bodies.read(request_of(gzip.compress(large))) as body:
        assert len(body["prompt"]) == LIMIT - 20


async def test_a_large_body_is_parsed_beside_the_event_loop() -> None:
    bodies, threads = Bodies(LIMIT), []
    for data in (BODY, b'{"prompt": "' + b"x" * LARGE_BYTES + b'"}'):
        request = request_of(gzip.compress(data))
        async with bodies.read(request):
            threads.append(await bodies.run(request, threading.current_thread))
    assert threads[0] is threading.main_thread()
    assert threads[1] is not threading.main_thread()
