"""What comes before a request is one: bytes of a socket, in a size and a time."""

import asyncio

import orjson
import pytest

from gateway.connection import HEADERS_TIMEOUT_S, MOST_HEADER_BYTES
from tests.gateway.conftest import Door

GET = b"GET /health HTTP/1.1\r\nhost: localhost\r\n"


async def answer_to(door: Door, *parts: bytes) -> bytes:
    """All that comes until the gateway closes the connection."""
    host, _, port = door.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    for part in parts:
        writer.write(part)
        # Each by itself, as far as the kernel lets it.
        await asyncio.sleep(0.05)
    answer = await reader.read()
    writer.close()
    return answer


def is_refused(answer: bytes, status: int) -> bool:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.startswith(b"HTTP/1.1 %d " % status) and bool(orjson.loads(body)["error"]["message"])


@pytest.mark.parametrize("before", [b"", GET + b"\r\n"], ids=["first", "second"])
async def test_a_header_without_an_end_is_not_collected(door: Door, before: bytes) -> None:
    answer = await answer_to(door, before, GET + b"x: " + b"y" * 1000, b"y" * (MOST_HEADER_BYTES + 1))
    assert is_refused(answer[answer.rindex(b"HTTP/1.1") :], 431)


async def test_what_is_no_http_is_refused_as_clients_read_it(door: Door) -> None:
    assert is_refused(await answer_to(door, b"hello\r\n\r\n"), 400)


async def test_a_request_behind_a_request_is_served(door: Door) -> None:
    answer = await answer_to(door, GET + b"\r\n" + GET + b"connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"", GET], ids=["silent", "begun"])
async def test_headers_that_do_not_come_end_the_connection(door: Door, begun: bytes) -> None:
    async with asyncio.timeout(2 * HEADERS_TIMEOUT_S):
        assert is_refused(await answer_to(door, begun), 408)
