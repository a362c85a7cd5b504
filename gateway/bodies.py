"""Request bodies, read and parsed within limits on size and time."""

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request

from gateway.errors import HttpError, bad_request, too_large, too_many

T = TypeVar("T")
BODY_TIMEOUT_S = 30.0
# A body of this size is parsed in a few milliseconds.
LARGE_BYTES = 64 << 10
# Large bodies held at once, as many as have the greatest size, and the values in one.
MAX_BODIES_AT_ONCE = 16
MAX_VALUES = 1 << 20
# Makes zlib expect gzip's header and trailer.
_GZIP_WBITS = 16 + zlib.MAX_WBITS
# zlib copies its remaining input after each gzip member: many short members would take quadratic time.
_GZIP_PIECE = 4096


class Bodies:
    """Reads and parses request bodies in bounded memory. Large ones take turns on a thread."""

    def __init__(self, max_bytes: int) -> None:
        """max_bytes: of one body."""
        self._max_bytes = max_bytes
        self._room_bytes = MAX_BODIES_AT_ONCE * max_bytes
        # One, so that any number of large bodies takes one share of the interpreter.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="bodies")

    @asynccontextmanager
    async def read(self, request: Request) -> AsyncGenerator[dict[str, Any], None]:
        """Yields the body; what it becomes inside counts with it.

        Raises HttpError: 413 (too large), 415 (content type or encoding), 408 (too slow), 429 (no room), or 400.
        """
        num_held = 0

        def hold(num_bytes: int) -> None:
            nonlocal num_held
            self._room_bytes -= num_bytes - num_held
            num_held = num_bytes
            if self._room_bytes < 0 and num_bytes > LARGE_BYTES:
                raise too_many("the bodies of open requests take too much memory together")

        try:
            data = await _receive(request, self._max_bytes, hold)
            request.state.num_body_bytes = len(data)
            yield await self.run(request, lambda: _parse_json(data))
        finally:
            self._room_bytes += num_held

    async def run(self, request: Request, work: Callable[[], T]) -> T:
        """`work`: linear in the body's size."""
        if request.state.num_body_bytes <= LARGE_BYTES:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def _receive(request: Request, max_bytes: int, hold: Callable[[int], None]) -> bytearray:
    """`hold`: called with the bytes received so far."""
    # Browsers send other types across origins without a preflight request.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "content-type must be application/json")
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
                hold(len(data))
    except TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT_S:.0f} s"
        raise HttpError(408, message) from None
    if gunzip is not None:
        gunzip.finish()
    return data


def _parse_json(data: bytearray) -> dict[str, Any]:
    """Raises HttpError."""
    # Counts those in texts too; each would take ten times its text's memory.
    if sum(map(data.count, (b",", b"[", b"{"))) > MAX_VALUES:
        raise bad_request(
            "body", f"the body has too many values; it must have at most {MAX_VALUES} commas and brackets"
        )
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise bad_request("body", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise bad_request("body", "the body is not a JSON object")
    return body


def _is_gzip(headers: Headers) -> bool:
    """Raises HttpError for other encodings."""
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        raise HttpError(501, f"transfer-encoding is {transfer!r:.80}; it must be chunked")
    given = ", ".join(headers.getlist("content-encoding"))
    codings = [each.strip().lower() for each in given.split(",")]
    # x-gzip is gzip (RFC 9110, 8.4.1.3).
    match [each for each in codings if each not in ("", "identity")]:
        case []:
            return False
        case ["gzip" | "x-gzip"]:
            return True
    message = f"content-encoding is {given!r:.80}; it must be gzip or identity"
    raise HttpError(415, message, "content-encoding", headers={"accept-encoding": "gzip"})


class Gunzip:
    """Decompresses gzip members (RFC 1952) as they arrive."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)

    def feed(self, data: bytes, max_bytes: int) -> bytearray:
        """Returns up to `max_bytes`. Raises HttpError for corrupt data."""
        found = bytearray()
        for start in range(0, len(data), _GZIP_PIECE):
            chunk = data[start : start + _GZIP_PIECE]
            while chunk and len(found) < max_bytes:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_WBITS)
                try:
                    found += self._member.decompress(chunk, max_bytes - len(found))
                except zlib.error as error:
                    raise _not_gzip(str(error)) from None
                chunk = self._member.unused_data
        return found

    def finish(self) -> None:
        """Raises HttpError if the data is truncated."""
        if not self._member.eof:
            raise _not_gzip("it is truncated")


def _not_gzip(why: str) -> HttpError:
    return bad_request("body", f"the body is not valid gzip data: {why}")
