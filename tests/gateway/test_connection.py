"""What comes before a request is one: bytes of a socket, in a size and a time."""

import asyncio

import orjson
import pytest

from gateway.http import HEADERS_TIMEOUT_S, MAX_HEADER_BYTES
from tests.gateway.conftest import RunningGateway

HOST = b"host: localhost\r\n"
GET = b"GET /health HTTP/1.1\r\n" + HOST


async def answer_to(gateway_service: RunningGateway, *parts: bytes) -> bytes:
    """All that comes until the gateway closes the connection."""
    host, _, port = gateway_service.url.removeprefix("http://").rpartition(":")
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
async def test_a_header_without_an_end_is_not_collected(gateway_service: RunningGateway, before: bytes) -> None:
    answer = await answer_to(gateway_service, before, GET + b"x: " + b"y" * 1000, b"y" * (MAX_HEADER_BYTES + 1))
    assert is_refused(answer[answer.rindex(b"HTTP/1.1") :], 431)


async def test_what_is_no_http_is_refused_as_clients_read_it(gateway_service: RunningGateway) -> None:
    assert is_refused(await answer_to(gateway_service, b"hello\r\n\r\n"), 400)


async def test_a_body_without_a_readable_length_is_refused(gateway_service: RunningGateway) -> None:
    bad = POST + b"transfer-encoding: chunked\r\n\r\n"
    assert is_refused(await answer_to(gateway_service, bad + b"zz\r\n"), 400)
    answer = await answer_to(gateway_service, GET + b"\r\n" + bad + b"1\r\n{\r\n", b"zz\r\n")
    assert is_refused(answer[answer.rindex(b"HTTP/1.1") :], 400)


async def test_a_client_that_waits_for_100_continue_is_refused_once(gateway_service: RunningGateway) -> None:
    bad = POST + b"expect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n"
    answer = await answer_to(gateway_service, bad)
    assert is_refused(answer[answer.rindex(b"HTTP/1.1") :], 400)
    assert "after write_eof" not in gateway_service.log


async def test_a_request_behind_a_request_is_served(gateway_service: RunningGateway) -> None:
    answer = await answer_to(gateway_service, GET + b"\r\n" + GET + b"connection: close\r\n\r\n")
    assert answer.count(b"HTTP/1.1 200 ") == 2


BODY = b'{"prompt": "t1 t2", "max_tokens": 2}'
POST = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAAAAIAAAAB\r\n"
OFFERED = POST + OFFER + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + OFFER + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n"
LAST = GET + b"connection: close\r\n\r\n"


@pytest.mark.parametrize(
    ("parts", "count"),
    [
        ((OFFERED, LAST), 2),
        ((OFFERED + LAST,), 2),
        ((GET + b"\r\n", OFFERED + OFFERED + LAST), 4),
        ((*(OFFERED[at : at + 30] for at in range(0, len(OFFERED), 30)), LAST), 2),
        ((CHUNKED + OFFERED + LAST,), 3),
        ((*(CHUNKED[at : at + 30] for at in range(0, len(CHUNKED), 30)), LAST), 2),
        ((GET + OFFER + b"\r\n" + LAST,), 2),
        ((POST + b"connection: close, upgrade\r\nupgrade: h2c\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY,), 1),
        ((OFFERED.replace(b"HTTP/1.1", b"HTTP/1.0"),), 1),
    ],
    ids=["alone", "followed", "behind", "in pieces", "chunked", "chunked in pieces", "no body", "closing", "1.0"],
)
async def test_an_offer_of_another_protocol_is_ignored(
    gateway_service: RunningGateway, parts: tuple[bytes, ...], count: int
) -> None:
    """As the JDK's client sends one with its first request."""
    async with asyncio.timeout(30):
        answer = await answer_to(gateway_service, *parts)
    assert answer.count(b"HTTP/1.1 200 ") == answer.count(b"HTTP/1.1 ") == count, answer


@pytest.mark.parametrize("target", [b"example.com:80", b"/x", b"*", b"http://localhost/"])
@pytest.mark.parametrize(
    "before", [b"", GET + b"\r\n", OFFERED, GET + OFFER + b"\r\n"], ids=["", "get", "offer", "empty offer"]
)
async def test_a_tunnel_is_refused(gateway_service: RunningGateway, target: bytes, before: bytes) -> None:
    async with asyncio.timeout(30):
        answer = await answer_to(
            gateway_service, before, b"CONNECT " + target + b" HTTP/1.1\r\n" + HOST + OFFER + b"\r\n" + LAST
        )
    assert is_refused(answer[answer.rindex(b"HTTP/1.1 ") :], 400)


@pytest.mark.parametrize(
    "bad",
    [b"CONNECT /x HTTP/1.1\r\n" + HOST + b"\r\n", POST + b"transfer-encoding: chunked\r\n\r\nzz\r\n", b"hello\r\n\r\n"],
    ids=["tunnel", "body", "no http"],
)
async def test_a_refusal_follows_the_answers_before_it(gateway_service: RunningGateway, bad: bytes) -> None:
    good = POST + b"content-length: %d\r\n\r\n" % len(BODY) + BODY
    async with asyncio.timeout(30):
        answer = await answer_to(gateway_service, good + good + bad, b"more")
    assert answer.count(b"HTTP/1.1 200 ") == 2
    assert answer.count(b"HTTP/1.1 ") == 3
    assert is_refused(answer[answer.rindex(b"HTTP/1.1 ") :], 400)


LONG = POST + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % 100_000 + b"x" * 100_000 + b"\r\nzz\r\n"


@pytest.mark.parametrize("bad", [b"hello\r\n\r\n", LONG], ids=["no http", "long"])
async def test_what_arrives_after_a_refusal_does_not_reset_the_connection(
    gateway_service: RunningGateway, bad: bytes
) -> None:
    host, _, port = gateway_service.url.removeprefix("http://").rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(bad)
    async with asyncio.timeout(30):
        head = await reader.readuntil(b"\r\n\r\n")
        for _ in range(3):
            writer.write(b"more" * 500_000)
            await writer.drain()
            await asyncio.sleep(0.05)
        assert is_refused(head + await reader.read(), 400)
    writer.close()


@pytest.mark.parametrize(
    ("version", "hosts", "status"),
    [(b"1.1", b"", 400), (b"1.1", HOST + HOST, 400), (b"1.0", HOST + HOST, 400), (b"1.0", b"", 200), (b"1.0", HOST, 200),
     (b"1.1", b"host: localhost:80:80\r\n", 400), (b"1.1", b"host: [127.0.0.1:80\r\n", 400), (b"1.1", b"host: \xe9\r\n", 400),
     (b"1.1", b"host: localhost:80@evil.example\r\n", 400), (b"1.1", b"host: localhost, localhost\r\n", 400)],
)  # fmt: skip
async def test_a_request_names_one_host(
    gateway_service: RunningGateway, version: bytes, hosts: bytes, status: int
) -> None:
    """RFC 9112, 3.2. HTTP/1.0 may leave it out."""
    answer = await answer_to(
        gateway_service, b"GET /health HTTP/" + version + b"\r\n" + hosts + b"connection: close\r\n\r\n"
    )
    assert answer.startswith(b"HTTP/1.1 %d " % status), answer
    assert status == 200 or (is_refused(answer, 400) and b'"param":"host"' in answer)


# An end as the first token would leave one event.
STREAM = b'{"prompt": "t1 t2", "max_tokens": 2, "ignore_eos": true, "stream": true}'


@pytest.mark.parametrize("more", [b"", b"connection: keep-alive\r\n", b"expect: 100-continue\r\n"])
@pytest.mark.parametrize("body", [BODY, STREAM], ids=["whole", "stream"])
async def test_an_answer_to_http_1_0_ends_with_the_connection(
    gateway_service: RunningGateway, body: bytes, more: bytes
) -> None:
    """It knows neither chunks nor 100 (Continue)."""
    head = POST.replace(b"HTTP/1.1", b"HTTP/1.0") + more + b"content-length: %d\r\n\r\n" % len(body)
    async with asyncio.timeout(30):
        head, _, content = (await answer_to(gateway_service, head + body)).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"\r\nconnection: close" in head
    assert b"transfer-encoding" not in head
    if body is STREAM:
        *events, last = content.removesuffix(b"\n\n").split(b"\n\n")
        assert last == b"data: [DONE]"
        assert [orjson.loads(each.removeprefix(b"data: "))["object"] for each in events] == ["text_completion"] * 2
    else:
        assert b"\r\ncontent-length: %d\r\n" % len(content) in head
        assert orjson.loads(content)["object"] == "text_completion"


async def test_http_1_1_keeps_its_connection_after_a_stream(gateway_service: RunningGateway) -> None:
    stream = POST + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM
    async with asyncio.timeout(30):
        answer = await answer_to(gateway_service, stream + LAST)
    assert b"transfer-encoding: chunked\r\n" in answer
    assert answer.count(b"HTTP/1.1 200 ") == 2


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"", GET], ids=["silent", "begun"])
async def test_headers_that_do_not_come_end_the_connection(gateway_service: RunningGateway, begun: bytes) -> None:
    async with asyncio.timeout(2 * HEADERS_TIMEOUT_S):
        assert is_refused(await answer_to(gateway_service, begun), 408)
