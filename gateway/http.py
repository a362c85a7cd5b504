"""HTTP connections and request bodies, with limits on size and time."""

import asyncio
import zlib
from typing import Any

import httptools
import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import Errors, Fault, bad_request, too_large

# For the request line and headers; clients send 1 or 2 KiB.
MAX_HEADER_BYTES = 64 << 10
# Time for the headers, from the connection or the end of the previous request.
HEADERS_TIMEOUT_S = 20.0
BODY_TIMEOUT_S = 30.0
# Makes zlib expect gzip's header and trailer.
_GZIP_WBITS = 16 + zlib.MAX_WBITS
# zlib copies its remaining input after each gzip member: many short members would take quadratic time.
_GZIP_PIECE = 4096


class HttpConnection(HttpToolsProtocol):
    """Limits the size and time of headers; uvicorn does not."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._num_header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        was_waiting = self._timer is not None
        self._unset_keepalive_if_required()
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")
            return
        if self._timer is None:
            # The rest is a body, which has its own limits.
            self._num_header_bytes = 0
        elif was_waiting:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, f"the headers are larger than {MAX_HEADER_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_header_timer()

    def on_headers_complete(self) -> None:
        if self._is_upgrade:
            return
        self._stop_header_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_upgrade:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = _for_http_1_0(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _is_upgrade(self) -> bool:
        # The client offers another protocol, such as h2c.
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _parse(self, data: bytes) -> None:
        """Ignores an offered upgrade (RFC 9110, 7.8): httptools would take the body for data of the other protocol."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = self._head_without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _start_header_timer(self) -> None:
        self._stop_header_timer()
        self._timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._on_header_timeout)

    def _stop_header_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _on_header_timeout(self) -> None:
        self._timer = None
        self._refuse(408, f"the headers did not arrive within {HEADERS_TIMEOUT_S:.0f} s")

    def _refuse(self, status: int, message: str) -> None:
        self._stop_header_timer()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline:
            # Its body can't be read to the end, so this is its response.
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
        # Not after an unfinished response.
        if cycle is None or cycle.response_complete:
            response = Errors().response(Fault(status, message))
            headers = [*response.raw_headers, (b"connection", b"close")]
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(response.body))
        self.transport.close()


def _for_http_1_0(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Sends no chunks and no 100 (Continue): the body ends with the connection."""
    cycle.keep_alive = cycle.waiting_for_100_continue = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                cycle.chunked_encoding = False
            else:
                # uvicorn subtracts each part's length from it.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return answer


async def read_body(request: Request, max_bytes: int) -> dict[str, Any]:
    """Raises Fault: 413 (too large), 415 (content type or encoding), 408 (too slow), or 400."""
    # Browsers send other types across origins without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Fault(415, "content-type must be application/json")
    gunzip = Gunzip() if _is_gzip(request.headers) else None
    if int(request.headers.get("content-length", 0)) > max_bytes:
        raise too_large(max_bytes)
    data, num_received = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                num_received += len(part)
                data += part if gunzip is None else gunzip.feed(part, max_bytes + 1 - len(data))
                if max(num_received, len(data)) > max_bytes:
                    raise too_large(max_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
        raise Fault(408, message) from None
    if gunzip is not None:
        gunzip.finish()
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise bad_request("body", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("body", "the body is not a JSON object")
    return body


def _is_gzip(headers: Headers) -> bool:
    """Raises Fault for other encodings."""
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        raise Fault(501, f"transfer-encoding is {transfer!r:.80}; it must be chunked")
    given = ", ".join(headers.getlist("content-encoding"))
    codings = [each.strip().lower() for each in given.split(",")]
    # x-gzip is gzip (RFC 9110, 8.4.1.3).
    match [each for each in codings if each not in ("", "identity")]:
        case []:
            return False
        case ["gzip" | "x-gzip"]:
            return True
    message = f"content-encoding is {given!r:.80}; it must be gzip or identity"
    raise Fault(415, message, "content-encoding", headers={"accept-encoding": "gzip"})


class Gunzip:
    """Decompresses gzip members (RFC 1952) as they arrive."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)

    def feed(self, data: bytes, max_bytes: int) -> bytearray:
        """Returns up to `max_bytes`. Raises Fault for corrupt data."""
        found = bytearray()
        for start in range(0, len(data), _GZIP_PIECE):
            piece = data[start : start + _GZIP_PIECE]
            while piece and len(found) < max_bytes:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_WBITS)
                try:
                    found += self._member.decompress(piece, max_bytes - len(found))
                except zlib.error as error:
                    raise _not_gzip(str(error)) from None
                piece = self._member.unused_data
        return found

    def finish(self) -> None:
        """Raises Fault if the data is truncated."""
        if not self._member.eof:
            raise _not_gzip("it is truncated")


def _not_gzip(why: str) -> Fault:
    return bad_request("body", f"the body is not valid gzip data: {why}")
