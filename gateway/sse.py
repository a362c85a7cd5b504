"""Server-sent events, and work that ends when its client goes."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from typing import Any

import orjson
from starlette.types import Receive, Send

from gateway.errors import SAME_NAMES, Names, of_exception
from gateway.spans import note_failure
from paceline.errors import PacelineError

log = logging.getLogger(__name__)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # A proxy that collects what it passes on would hold the text back.
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"


def event(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def send_events(
    chunks: AsyncGenerator[list[dict[str, Any]], None], send: Send, names: Names = SAME_NAMES
) -> None:
    """Sends the stream: what comes together goes out together. Raises what comes before the first chunk; an error
    behind it is an event, the last but [DONE]. `names`: of fields, in errors.

    `send` waits where the client does not read, so this holds no more than one round.
    """
    async with aclosing(chunks):
        first = await anext(chunks)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await _send(send, first)
        try:
            async for each in chunks:
                await _send(send, each)
        except Exception as error:
            if not isinstance(error, PacelineError):
                log.exception("a stream failed", exc_info=error)
            note_failure(error)
            await _send(send, [of_exception(error, names)])
    await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _send(send: Send, bodies: list[Any]) -> None:
    await send({"type": "http.response.body", "body": b"".join(map(event, bodies)), "more_body": True})


async def until_client_goes(receive: Receive, work: Awaitable[None]) -> None:
    """Runs `work`, and cancels it when the client closes its connection. The request's body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
