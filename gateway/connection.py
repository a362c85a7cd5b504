"""A connection: uvicorn's, which httptools parses, with bounds on what comes before a request is one."""

import asyncio
from typing import Any

import httptools
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gateway.errors import HttpError
from gateway.json_response import error_response

# Of a request: its first line and headers. Clients send one or two KiB.
MOST_HEADER_BYTES = 64 << 10
# From the connection, or the last request's end, until all of them are there.
HEADERS_TIMEOUT_S = 20.0


class Connection(HttpToolsProtocol):
    """Closed when headers are too many or too slow: neither httptools nor uvicorn bounds them. Speaks HTTP/1.1 and 1.0."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._num_header_bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._have_headers()
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
            # The rest is a body, which has bounds of its own.
            self._num_header_bytes = 0
        elif was_waiting:
            self._num_header_bytes += len(data)
            if self._num_header_bytes > MOST_HEADER_BYTES:
                self._refuse(431, f"the headers are larger than {MOST_HEADER_BYTES} bytes")

    def send_400_response(self, msg: str) -> None:
        """Of what is no HTTP."""
        self._refuse(400, msg)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        if self._is_offer:
            return
        self._have_headers()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self._is_offer:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        if cycle.scope["http_version"] != "1.1":
            app = _for_http_1_0(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _is_offer(self) -> bool:
        """Whether the client would rather go on in another protocol, such as h2c, behind these headers."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _parse(self, data: bytes) -> None:
        """An offer of another protocol is ignored (RFC 9110, 7.8): the request is read as if it held none. httptools
        takes what is behind it for that protocol's, and not for the request's body."""
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as offer:
                data = self._head_without_offer() + data[offer.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _head_without_offer(self) -> bytes:
        """The first line and the headers that were parsed last."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _await_headers(self) -> None:
        self._have_headers()
        self._timer = self.loop.call_later(HEADERS_TIMEOUT_S, self._give_up)

    def _have_headers(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._timer = None
        self._refuse(408, f"the headers did not come within {HEADERS_TIMEOUT_S:.0f} s")

    def _refuse(self, status: int, message: str) -> None:
        self._have_headers()
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not cycle.response_started and not self.pipeline:
            # The rest of its body can't be read: this is its answer.
            cycle.disconnected = cycle.response_complete = True
            cycle.message_event.set()
        # In the midst of an answer that is still on its way nothing else can be said.
        if cycle is None or cycle.response_complete:
            response = error_response(HttpError(status, message, "invalid_request_error"))
            headers = [*response.raw_headers, (b"connection", b"close")]
            lines = b"".join(name + b": " + value + b"\r\n" for name, value in headers)
            self.transport.write(STATUS_LINE[status] + lines + b"\r\n" + bytes(response.body))
        self.transport.close()


def _for_http_1_0(app: ASGIApp, cycle: RequestResponseCycle) -> ASGIApp:
    """Answers a client that knows neither chunks nor 100 (Continue): the connection's end is the body's."""
    cycle.keep_alive = cycle.waiting_for_100_continue = False

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_unchunked(message: Message) -> None:
            if message["type"] == "http.response.start":
                cycle.chunked_encoding = False
            else:
                # uvicorn counts it down, and has no length to count down from.
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_unchunked)

    return answer
