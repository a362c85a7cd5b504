"""A request's body: read up to a limit, decompressed, decoded, and its values with their types."""

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request

from gateway.errors import HttpError, refuse, too_large

# A body that takes longer to come is given up.
BODY_TIMEOUT_S = 30.0
# zlib's: a gzip header and trailer.
_GZIP_WBITS = 16 + zlib.MAX_WBITS
# zlib copies what follows a member: many short ones in a long part would cost the square of its length.
_GZIP_PIECE = 4096


async def read_body(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object. Raises HttpError: 413 for one that is too large, 415 for another type or coding, 400 for what is none."""
    # A page of somebody else's can send any type but this one unasked.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "content-type must be application/json", "invalid_request_error")
    gunzip = Gunzip() if _is_gzip(request.headers) else None
    if int(request.headers.get("content-length", 0)) > most_bytes:
        raise too_large(most_bytes)
    data, num_received = bytearray(), 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                num_received += len(part)
                data += part if gunzip is None else gunzip.feed(part, most_bytes + 1 - len(data))
                if max(num_received, len(data)) > most_bytes:
                    raise too_large(most_bytes)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s", "invalid_request_error") from None
    if gunzip is not None:
        gunzip.finish()
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise refuse("body", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise refuse("body", "the body is not a JSON object")
    return body


def _is_gzip(headers: Headers) -> bool:
    """Whether the body is compressed. Raises HttpError for codings other than gzip."""
    transfer = headers.get("transfer-encoding", "chunked")
    if transfer.lower() != "chunked":
        raise HttpError(501, f"transfer-encoding is {transfer!r:.80}; it must be chunked", "invalid_request_error")
    given = ", ".join(headers.getlist("content-encoding"))
    codings = [each.strip().lower() for each in given.split(",")]
    # x-gzip is gzip (RFC 9110, 8.4.1.3).
    match [each for each in codings if each not in ("", "identity")]:
        case []:
            return False
        case ["gzip" | "x-gzip"]:
            return True
    message = f"content-encoding is {given!r:.80}; it must be gzip or identity"
    raise HttpError(415, message, "invalid_request_error", "content-encoding", headers={"accept-encoding": "gzip"})


class Gunzip:
    """Decompresses gzip data as it arrives: one member, or several in a row (RFC 1952)."""

    def __init__(self) -> None:
        self._member = zlib.decompressobj(_GZIP_WBITS)

    def feed(self, data: bytes, most_bytes: int) -> bytearray:
        """Returns what `data` decompresses to, cut off at `most_bytes`. Raises HttpError for damaged data."""
        found = bytearray()
        for start in range(0, len(data), _GZIP_PIECE):
            piece = data[start : start + _GZIP_PIECE]
            while piece and len(found) < most_bytes:
                if self._member.eof:
                    self._member = zlib.decompressobj(_GZIP_WBITS)
                try:
                    found += self._member.decompress(piece, most_bytes - len(found))
                except zlib.error as error:
                    raise _not_gzip(str(error)) from None
                piece = self._member.unused_data
        return found

    def finish(self) -> None:
        """Raises HttpError if more data should have come."""
        if not self._member.eof:
            raise _not_gzip("it ends too early")


def _not_gzip(why: str) -> HttpError:
    return refuse("body", f"the body is not valid gzip data: {why}")


def get(body: Mapping[str, Any], name: str, kind: type, allowed: str, default: Any = None) -> Any:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise refuse(name, f"{name} is {value!r:.80}; it must be {allowed}")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool = False, where: str = "") -> bool:
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise refuse(where + name, f"{where}{name} is {value!r:.80}; it must be true or false")
    return default if value is None else value
