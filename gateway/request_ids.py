"""By which a request is known: in all logs, to its coordinator, and in its answer's headers."""

import secrets
import string
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import Request

from gateway.errors import refuse
from paceline.observability import logs
from paceline.sampling import MAX_ID_CHARACTERS

HEADER = "x-request-id"
# What a header's value carries as it is.
_PLAIN = string.punctuation + " "


def begin(state: MutableMapping[str, Any]) -> None:
    """Gives the request whose state this is a name of our own."""
    _name(state, secrets.token_hex(12))


def take_from_headers(state: MutableMapping[str, Any], headers: Headers) -> None:
    """What the client, or a proxy on its way, calls the request. Raises HttpError."""
    given = headers.get(HEADER, "")
    if len(given) > MAX_ID_CHARACTERS or not given.isprintable():
        raise refuse(HEADER, f"{HEADER} must be at most {MAX_ID_CHARACTERS} printable characters")
    if given:
        _name(state, given)


def take_from_body(request: Request, given: str) -> str:
    """The name in the body goes before one in the headers. Returns the request's; the coordinator says what is too long."""
    state: MutableMapping[str, Any] = request.scope["state"]
    _name(state, given[:MAX_ID_CHARACTERS] or state["request_id"])
    return given or str(state["request_id"])


def answer_header(state: MutableMapping[str, Any]) -> tuple[bytes, bytes]:
    return HEADER.encode(), quote(state["request_id"], safe=_PLAIN).encode()


def _name(state: MutableMapping[str, Any], name: str) -> None:
    # For the answer, and for what is logged from here on: tasks see the state, and inherit the other.
    state["request_id"] = name
    logs.request_id.set(name)
