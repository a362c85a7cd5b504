"""What an API that generates must say, and the event stream of its answers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, ClassVar

import orjson
from starlette.types import Send

from gateway.errors import Errors, HttpError, from_exception
from gateway.items import Items, Step
from gateway.requests import HttpRequest, Serving
from gateway.resumed_generation import Generation
from gateway.telemetry import record_failure
from gateway.usage import Usage
from paceline.errors import PacelineError
from paceline.results import Chunk, Finish

log = logging.getLogger(__name__)
# A stream opens without its first event after this time; until then errors are HTTP statuses.
OPEN_AFTER_S = 3.0
# Clients take a longer silence for a failure: the first to do so warns after 20 s.
BEAT_S = 10.0
# What clients keep for us with reasoning, or its beginning. Some take reasoning without one for another server's.
REASONING_SIGNATURE = "pl1."
EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Proxies such as nginx would buffer the stream.
    (b"x-accel-buffering", b"no"),
]


class Reply(ABC):
    """One request's answer, as events or as a whole."""

    # Sent after the last event.
    stream_end: ClassVar[bytes] = b""

    def __init__(self, generation: Generation, errors: Errors) -> None:
        self._generation = generation
        self._request = generation.request
        self._errors = errors
        self._usage = Usage(self._request.prompts, self._request.prediction is not None)

    @abstractmethod
    def chunks(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yields each round's events."""

    @abstractmethod
    async def whole(self) -> dict[str, Any]: ...

    def encode(self, body: dict[str, Any]) -> bytes:
        """Encodes an event. Called in the order of sending."""
        return b"data: %b\n\n" % orjson.dumps(body)

    def beat(self) -> bytes:
        """Returns what tells a waiting client that its request is alive."""
        return b": waiting\n\n"

    def failure(self, http_error: HttpError) -> list[dict[str, Any]]:
        """Returns the events that end a stream early."""
        return [self._errors.error_body(http_error, self._request.request_id)]


class Dialect(Errors, ABC):
    """An API that generates. Registered in `gateway/app.py`."""

    path: ClassVar[str]
    # A stream's last events repeat all before them, so that the answer is kept.
    stream_repeats: ClassVar[bool] = False

    @abstractmethod
    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        """Raises HttpError and InvalidArgument."""

    @abstractmethod
    def reply(self, generation: Generation) -> Reply: ...


class ItemsReply(Reply):
    """An answer told as items."""

    def __init__(self, generation: Generation, errors: Errors) -> None:
        super().__init__(generation, errors)
        self._items = Items()
        self._finish: Finish | None = None
        self._has_begun = False

    async def chunks(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        async with aclosing(self._rounds()) as rounds:
            async for chunk, steps in rounds:
                events = [*self.opening(), *(event for step in steps for event in self.spell(step))]
                yield events if chunk.finish is None else [*events, *self.end(chunk.finish)]

    async def whole(self) -> dict[str, Any]:
        async with aclosing(self._rounds()) as rounds:
            async for _, steps in rounds:
                for step in steps:
                    self.spell(step)
        return self.answer()

    def opening(self) -> list[dict[str, Any]]:
        """Returns the events before the first item, once."""
        if self._has_begun:
            return []
        self._has_begun = True
        return self.begin()

    @abstractmethod
    def begin(self) -> list[dict[str, Any]]: ...

    async def read_logprobs(self, chunk: Chunk) -> None:
        """Gets each round before its steps are spelled."""

    @abstractmethod
    def spell(self, step: Step) -> list[dict[str, Any]]:
        """Returns a step's events."""

    @abstractmethod
    def end(self, finish: Finish) -> list[dict[str, Any]]:
        """Returns the events after the last item."""

    @abstractmethod
    def answer(self) -> dict[str, Any]:
        """Returns the whole answer."""

    @property
    def paceline(self) -> dict[str, Any]:
        """Returns our own root field."""
        figures, tools = self._usage.figures()["paceline"] or {}, self._request.tools
        if unenforced := [*tools.unenforced, *figures.get("unenforced", ())]:
            figures["unenforced"] = unenforced
        if tools.left_out:
            figures["left_out"] = list(tools.left_out)
        return {"paceline": figures}

    async def _rounds(self) -> AsyncGenerator[tuple[Chunk, list[Step]], None]:
        """Counts each round, and yields it with its steps."""
        async with aclosing(self._generation.rounds()) as rounds:
            async for _, chunk in rounds:
                # Awaited before any event is made: a beat in between would overtake it.
                await self.read_logprobs(chunk)
                self._usage.begin(0, chunk)
                self._usage.count(len(chunk.token_ids))
                if chunk.finish is not None:
                    self._finish = chunk.finish
                    self._usage.finish(0, chunk.finish)
                yield chunk, self._items.read(chunk)


def named_event(body: dict[str, Any]) -> bytes:
    """Encodes an event that has its type as its name."""
    return b"event: %b\ndata: %b\n\n" % (body["type"].encode(), orjson.dumps(body))


class EventStream:
    """Sends a reply's events, and a beat whenever there is nothing else to send."""

    def __init__(self, reply: Reply, errors: Errors, headers: Mapping[str, str], send: Send) -> None:
        self._reply = reply
        self._errors = errors
        more = [(name.encode(), value.encode()) for name, value in headers.items()]
        self._headers = [*EVENT_HEADERS, *more]
        self._send = send
        self._is_open = False
        self._sent_s = 0.0

    async def run(self) -> None:
        """Raises errors until the stream is open; sends later ones as events."""
        beating = asyncio.create_task(self._beat())
        try:
            async with aclosing(self._reply.chunks()) as chunks:
                async for bodies in chunks:
                    await self._send_part(b"".join(map(self._reply.encode, bodies)))
        except Exception as error:
            if not self._is_open:
                raise
            if not isinstance(error, PacelineError):
                log.exception("stream failed", exc_info=error)
            record_failure(error)
            bodies = self._reply.failure(from_exception(error, self._errors.field_names))
            await self._send_part(b"".join(map(self._reply.encode, bodies)))
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)
        await self._send({"type": "http.response.body", "body": self._reply.stream_end, "more_body": False})

    async def _send_part(self, part: bytes) -> None:
        if not self._is_open:
            self._is_open = True
            await self._send({"type": "http.response.start", "status": 200, "headers": self._headers})
        self._sent_s = asyncio.get_running_loop().time()
        await self._send({"type": "http.response.body", "body": part, "more_body": True})

    async def _beat(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(OPEN_AFTER_S)
        while True:
            if not self._is_open or clock() - self._sent_s >= BEAT_S:
                await self._send_part(self._reply.beat())
            await asyncio.sleep(self._sent_s + BEAT_S - clock())
