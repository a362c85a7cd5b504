"""HTTP connections, with limits on size and time."""

import asyncio
import socket
import sys
from collections import OrderedDict
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.bodies import BODY_TIMEOUT_S
from gateway.errors import Errors, HttpError

# For the request line and headers, and again for a chunked body's trailers and extensions; clients send 1 or 2 KiB.
MAX_HEADER_BYTES = 64 << 10
MAX_HEADERS = 256
# Requests that wait for the response before them.
MAX_PIPELINED = 64
# Time for the headers, from the connection, the end of the previous request, or its first byte.
HEADERS_TIMEOUT_S = 20.0
# Time for what a client has not read of a response: this, and more for a long one.
READ_TIMEOUT_S = 60.0
MIN_READ_BYTES_PER_S = 16 << 10
# Time for the client to close after a refusal.
LINGER_S = 5.0
# The kernel buffers megabytes otherwise, and takes more only when a third of them is read.
MAX_UNSENT_BYTES = 128 << 10
# A request has one connection; as many others may be idle.
CONNECTIONS_PER_REQUEST = 2


class Connections:
    """Counts open connections. At the limit the one that has waited longest for a request makes room."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_open = 0
        # Without a request, in the order in which they began to wait.
        self._waiting: OrderedDict[HttpConnection, None] = OrderedDict()

    def open(self, connection: "HttpConnection") -> bool:
        """Returns whether there is room."""
        self._num_open += 1
        if self._num_open > self._limit:
            if not self._waiting:
                return False
            self._waiting.popitem(last=False)[0].abort()
        self.wait(connection)
        return True

    def wait(self, connection: "HttpConnection") -> None:
        self._waiting[connection] = None
        self._waiting.move_to_end(connection)

    def work(self, connection: "HttpConnection") -> None:
        self._waiting.pop(connection, None)

    def close(self, connection: "HttpConnection") -> None:
        self._num_open -= 1
        self.work(connection)


class HttpConnection(HttpToolsProtocol):
    """Bounds what uvicorn does not: the size and the time of what a client sends, and the time in which it reads.

    A connection without a request in progress has a timer, or uvicorn's for keep-alive. One with a response that the client
    does not read has another.
    """

    def __init__(self, *arguments: Any, connections: Connections | None = None, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._connections = connections or Connections(sys.maxsize)
        # Of the headers of one request, and of its trailers.
        self._num_headers = self._num_header_bytes = 0
        # Received since the last part of a body, or the last end of headers or request.
        self._num_pending_bytes = 0
        # Whether a request has begun, and its headers are complete, and it is not.
        self._has_begun = self._is_body = False
        self._fault: tuple[int, str] | None = None
        # What is received after a refusal is ignored, also while it waits for the responses before it.
        self._refusal: tuple[int, str] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._read_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # Any unread byte pauses: then the timer runs, also after the end of a response.
        transport.set_write_buffer_limits(high=1, low=0)
        if (connection := transport.get_extra_info("socket")).family != socket.AF_UNIX:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, MAX_UNSENT_BYTES)
        if self._connections.open(self):
            self._start_timer()
        else:
            self._refuse(503, "too many connections")
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.close(self)
        self._stop_timer()
        self._stop_read_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._unset_keepalive_if_required()
        self._num_pending_bytes += len(data)
        try:
            self._parse(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            status, message = self._fault or (400, "Invalid HTTP request received.")
            self.logger.warning(message)
            self._refuse(status, message)
            return
        if self._num_pending_bytes > MAX_HEADER_BYTES:
            self._refuse(*_TOO_MANY_HEADERS)
        elif self._is_waiting and self._timer is None:
            self._start_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_read_timer()
        unread_s = self.transport.get_write_buffer_size() / MIN_READ_BYTES_PER_S
        self._read_timer = self.loop.call_later(READ_TIMEOUT_S + unread_s, self.abort)

    def resume_writing(self) -> None:
        self._stop_read_timer()
        super().resume_writing()

    def abort(self) -> None:
        """Closes at once, whatever is unread."""
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._has_begun = True
        self._num_headers = self._num_header_bytes = 0
        if self._is_waiting:
            self._start_timer()

    def on_url(self, url: bytes) -> None:
        self._count_header(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._num_headers += 1
        self._count_header(len(name) + len(value))
        # Trailers are ignored (RFC 9110, 6.5.1).
        if not self._is_body:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._num_pending_bytes = 0
        if self._is_upgrade:
            return
        if self.parser.get_method() == b"CONNECT":
            self._fail(400, "CONNECT is not supported")
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(429, f"more than {MAX_PIPELINED} requests wait for a response")
        self._is_body = True
        self._stop_timer()
        self._connections.work(self)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._num_pending_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._num_pending_bytes = 0
        if self._is_upgrade:
            return
        self._has_begun = self._is_body = False
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._refusal is not None:
            if not self.pipeline:
                self._refuse(*self._refusal)
        elif self._is_waiting:
            self._connections.wait(self)
            if self._has_begun:
                # The rest of a body that nobody read, or the next request's beginning.
                self._start_timer()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = _for_http_1_0(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _is_waiting(self) -> bool:
        """Whether no request is in progress."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _is_upgrade(self) -> bool:
        # The client offers another protocol, such as h2c.
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _parse(self, data: bytes) -> None:
        """Ignores an offered upgrade (RFC 9110, 7.8): httptools would take the body for data of the other protocol."""
        while data:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                head = self._head_without_upgrade()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                # By itself: what is left of `data` grows shorter with each turn, and this offers nothing.
                self.parser.feed_data(head)
                data = data[upgrade.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _count_header(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES or self._num_headers > MAX_HEADERS:
            self._fail(*_TOO_MANY_HEADERS)

    def _fail(self, status: int, message: str) -> None:
        """Ends parsing, from a callback of the parser."""
        self._fault = status, message
        raise ValueError(message)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(BODY_TIMEOUT_S if self._is_body else HEADERS_TIMEOUT_S, self._on_timeout)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_timeout(self) -> None:
        self._timer = None
        if self._is_body:
            # Its response is out.
            self.transport.close()
        else:
            self._refuse(408, f"the headers did not arrive within {HEADERS_TIMEOUT_S:.0f} s")

    def _refuse(self, status: int, message: str) -> None:
        self._stop_timer()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline:
            # Its body can't be read to the end, so this is its response.
            cycle.disconnected, cycle.response_complete, cycle.waiting_for_100_continue = True, True, False
            cycle.message_event.set()
        if cycle is not None and not cycle.response_complete and (self.pipeline or not cycle.more_body):
            self._refusal = status, message
            return
        # Not after an unfinished response.
        if cycle is None or cycle.response_complete:
            response = Errors().response(HttpError(status, message))
            headers = [*response.raw_headers, (b"connection", b"close")]
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(response.body))
            if self.transport.can_write_eof():
                # Closing resets the connection if more arrives: the client may lose the refusal (RFC 9112, 9.6).
                self._refusal = status, message
                # A long body pauses it.
                self.flow.resume_reading()
                self._connections.wait(self)
                self.transport.write_eof()
                self._timer = self.loop.call_later(LINGER_S, self.transport.close)
                return
        self.transport.close()


_TOO_MANY_HEADERS = 431, f"the headers are larger than {MAX_HEADER_BYTES} bytes, or more than {MAX_HEADERS}"


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
