"""Who may come in: by key, by the host that was asked for, and as long as there is room. Pure ASGI."""

import base64
import binascii
import logging
import re
import secrets
import string
import time
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import HttpError, bad_request, error_response, internal, too_many, unauthorized
from gateway.telemetry import GatewayMetrics
from paceline.keys import KeyRing, is_loopback
from paceline.observability import logs
from paceline.observability.logs import with_fields
from paceline.sampling import MAX_ID_CHARACTERS

log = logging.getLogger(__name__)
# Answered without a key: health, and the page, which holds no data and in which a key can be typed.
HEALTH_PATHS = ("/health", "/ready")
OPEN_PATHS = (*HEALTH_PATHS, "/", "/favicon.ico")
OPEN_FOLDER = "/static/"
# Asked for again and again by machines: not worth a line each.
QUIET_PATHS = (*HEALTH_PATHS, "/metrics")
# By which requests are counted; all others are "other".
COUNTED_PATHS = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/deployment", "/tokenize", "/detokenize", "/tokenizer_info",
    *QUIET_PATHS, "/",
)  # fmt: skip
# A Host header (RFC 3986): a name or an address, IPv6 in brackets, and perhaps a port.
_HOST = re.compile(r"(\[[\w.:~-]+\]|[\w.~!$&'()*+,;=%-]*)(:\d*)?", re.ASCII)


class Guard:
    """In front of the application: whatever it raises becomes an answer here. Puts the caller's key into the request's
    state."""

    def __init__(
        self, app: ASGIApp, keys: KeyRing | None, max_open: int, loopback_only: bool, metrics: GatewayMetrics
    ) -> None:
        """`keys`: None: nobody needs one. `loopback_only`: refuse requests that name another host: a page whose name
        was made to point here (DNS rebinding) would pass for the gateway's own."""
        self._app = app
        self._keys = keys
        self._max_open = max_open
        self._loopback_only = loopback_only
        self._metrics = metrics
        self.num_open = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = time.perf_counter(), 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message.get("headers", ()), request_id_header(state)]}
            await send(message)

        headers = Headers(scope=scope)
        key, name = _bearer_key(headers), None
        state = scope.setdefault("state", {})
        state["key"] = key
        assign_request_id(state)
        self.num_open += 1
        self._metrics.count_open(1)
        try:
            read_request_id_header(state, headers)
            name = self._authorize(scope["path"], _named_host(scope, headers), key)
            await self._app(scope, receive, send_noted)
        except HttpError as error:
            await error_response(error)(scope, receive, send_noted)
        except ClientDisconnect:
            # It went away while it sent its body: there is nobody to answer.
            pass
        except Exception as error:
            if status:
                raise
            log.exception("a request failed", exc_info=error)
            await error_response(internal())(scope, receive, send_noted)
        finally:
            self.num_open -= 1
            self._metrics.count_open(-1)
            self._record(scope, name, status, time.perf_counter() - started_s)

    def _record(self, scope: Scope, name: str | None, status: int, took_s: float) -> None:
        path = scope["path"]
        self._metrics.count_request(path if path in COUNTED_PATHS else "other", status, took_s)
        fields = {
            "request_id": scope["state"]["request_id"], "caller": name or "-", "method": scope["method"],
            "path": path[:100], "status": status, "ms": round(took_s * 1e3),
        }  # fmt: skip
        log.log(logging.DEBUG if path in QUIET_PATHS else logging.INFO, "request over", extra=with_fields(**fields))

    def _authorize(self, path: str, host: str, key: str | None) -> str | None:
        """The name of the key's owner. Raises HttpError."""
        if self._loopback_only and not is_loopback(host):
            raise HttpError(403, "this gateway answers on loopback only", "permission_error", code="wrong_host")
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return None
        name = None
        if self._keys is not None:
            name = self._keys.name_of(key)
            if name is None:
                what = "there is no key in the request" if key is None else "the key is not known"
                raise unauthorized(f"{what}; send it as `Authorization: Bearer KEY`")
        if self.num_open > self._max_open:
            raise too_many(f"{self._max_open} requests are open, which is the most")
        return name


def _named_host(scope: Scope, headers: Headers) -> str:
    """Returns the host that the request names, without its port. Raises HttpError as RFC 9112, 3.2 asks."""
    named = headers.getlist("host") or (["localhost"] if scope["http_version"] == "1.0" else [])
    if len(named) == 1 and (found := _HOST.fullmatch(named[0])):
        return found[1]
    raise bad_request("host", "there must be one Host header, which holds HOST or HOST:PORT")


def _bearer_key(headers: Headers) -> str | None:
    """From `Authorization: Bearer KEY`, or as the password of `Basic`."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers.get("x-api-key") or None


HEADER = "x-request-id"
# What a header's value carries as it is.
_PLAIN = string.punctuation + " "


def assign_request_id(state: MutableMapping[str, Any]) -> None:
    """Gives the request whose state this is a name of our own."""
    _set_request_id(state, secrets.token_hex(12))


def read_request_id_header(state: MutableMapping[str, Any], headers: Headers) -> None:
    """What the client, or a proxy on its way, calls the request. Raises HttpError."""
    given = headers.get(HEADER, "")
    if len(given) > MAX_ID_CHARACTERS or not given.isprintable():
        raise bad_request(HEADER, f"{HEADER} must be at most {MAX_ID_CHARACTERS} printable characters")
    if given:
        _set_request_id(state, given)


def read_request_id_field(request: Request, given: str) -> str:
    """The name in the body goes before one in the headers. Returns the request's; the coordinator says what is too long."""
    state: MutableMapping[str, Any] = request.scope["state"]
    _set_request_id(state, given[:MAX_ID_CHARACTERS] or state["request_id"])
    return given or str(state["request_id"])


def request_id_header(state: MutableMapping[str, Any]) -> tuple[bytes, bytes]:
    return HEADER.encode(), quote(state["request_id"], safe=_PLAIN).encode()


def _set_request_id(state: MutableMapping[str, Any], name: str) -> None:
    # For the answer, and for what is logged from here on: tasks see the state, and inherit the other.
    state["request_id"] = name
    logs.request_id.set(name)


class SlashIgnored:
    """Serves PATH/ as PATH. A redirect would name a scheme, and a proxy that ends TLS hides the client's."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.endswith("/") and path != "/":
            scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)
