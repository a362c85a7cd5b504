"""A request's body: read up to a limit, decoded, and its values with their types."""

import asyncio
from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request

from gateway.errors import HttpError, refuse, too_large

# A body that takes longer to come is given up.
BODY_TIMEOUT_S = 30.0


async def read_body(request: Request, most_bytes: int) -> dict[str, Any]:
    """The JSON object. Raises HttpError: 413 for one that is too large, 415 for another type, 400 for what is none."""
    # A page of somebody else's can send any type but this one unasked.
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HttpError(415, "content-type must be application/json", "invalid_request_error")
    if int(request.headers.get("content-length", 0)) > most_bytes:
        raise too_large(most_bytes)
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for part in request.stream():
                data += part
                if len(data) > most_bytes:
                    raise too_large(most_bytes)
    except TimeoutError:
        raise HttpError(408, f"the body did not come within {BODY_TIMEOUT_S:.0f} s", "invalid_request_error") from None
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise refuse("body", f"the body is not valid JSON: {error}") from None
    if not isinstance(body, dict):
        raise refuse("body", "the body is not a JSON object")
    return body


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
