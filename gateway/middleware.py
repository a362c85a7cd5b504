import base64
import binascii
import logging
import re
import secrets
import string
import time
from collections.abc import Callable, Collection, MutableMapping, Sequence
from typing import Any
from urllib.parse import quote

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gateway.errors import REQUEST_ID_HEADER, Errors, HttpError, bad_request, from_exception, too_many, unauthorized
from gateway.telemetry import GatewayMetrics, record_failure
from paceline.errors import PacelineError
from paceline.keys import KeyRing
from paceline.observability import logs
from paceline.observability.logs import with_fields
from paceline.sampling_params import MAX_ID_CHARACTERS
from paceline.shares import Shares, same_weight

log = logging.getLogger(__name__)
# Served without a key: health checks, and the page, which has a field for the key.
HEALTH_PATHS = ("/health", "/ready")
OPEN_PATHS = (*HEALTH_PATHS, "/", "/favicon.ico")
OPEN_FOLDER = "/static/"
# Logged at DEBUG.
QUIET_PATHS = (*HEALTH_PATHS, "/metrics")
# Characters left unquoted in headers.
_PLAIN = string.punctuation + " "
# A Host header (RFC 3986): a name or an address, IPv6 in brackets, and an optional port.
_HOST = re.compile(r"(\[[\w.:~-]+\]|[\w.~!$&'()*+,;=%-]*)(:\d*)?", re.ASCII)


class SlashIgnored:
    """Serves PATH/ as PATH. A redirect would need the client's scheme, which a TLS proxy hides."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if path.endswith("/") and path != "/":
            scope = {**scope, "path": path[:-1]}
        await self._app(scope, receive, send)


class AdmissionMiddleware:
    """Admits requests by key, host and number of open requests; turns all exceptions into responses.

    Sets `key`, its `owner` and `request_id` in the request's state.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: KeyRing | None,
        max_open: int,
        is_own_host: Callable[[str], bool] | None,
        counted_paths: Collection[str],
        errors_of: Callable[[Scope], Errors],
        metrics: GatewayMetrics,
    ) -> None:
        """keys: None admits everyone.
        max_open: requests at a time, apart from those for OPEN_PATHS.
        is_own_host: refuse other hosts, against DNS rebinding.
        counted_paths: other paths share one metric label.
        errors_of: how a request's errors are spelled.
        """
        self._app = app
        self._keys = keys
        self._max_open = max_open
        self._is_own_host = is_own_host
        self._places = Shares(max_open, same_weight if keys is None else keys.weight_of)
        self._counted_paths = counted_paths
        self._errors_of = errors_of
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, status = time.perf_counter(), 0
        errors = self._errors_of(scope)

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                ids = _request_id_headers(state, errors.id_headers)
                message = {**message, "headers": [*message.get("headers", ()), *ids]}
            await send(message)

        headers = Headers(scope=scope)
        key, name = _read_key(headers), None
        state = scope.setdefault("state", {})
        state["key"] = key
        _set_request_id(state, secrets.token_hex(12))
        has_place = False
        self._metrics.count_open(1)
        try:
            _take_request_id_from_headers(state, headers)
            name = self._authorize(scope["path"], _read_host(scope, headers), key)
            state["owner"] = name
            has_place = self._take_place(scope["path"], name)
            await self._app(scope, receive, send_noted)
        except ClientDisconnect:
            # The client disconnected while sending its body.
            pass
        except Exception as error:
            if status:
                raise
            http_error = from_exception(error, errors.field_names)
            if http_error.status == 500 and not isinstance(error, PacelineError):
                log.exception("request failed", exc_info=error)
            record_failure(error)
            await errors.response(http_error, state["request_id"])(scope, receive, send_noted)
        finally:
            if has_place:
                self._places.give_back(name)
            self._metrics.count_open(-1)
            self._record(scope, name, status, time.perf_counter() - started_s)

    def _record(self, scope: Scope, name: str | None, status: int, took_s: float) -> None:
        path = scope["path"]
        self._metrics.count_request(path if path in self._counted_paths else "other", status, took_s)
        fields = {
            "request_id": scope["state"]["request_id"], "caller": name or "-", "method": scope["method"],
            "path": path[:100], "status": status, "ms": round(took_s * 1e3),
        }  # fmt: skip
        log.log(logging.DEBUG if path in QUIET_PATHS else logging.INFO, "request over", extra=with_fields(**fields))

    def _authorize(self, path: str, host: str, key: str | None) -> str | None:
        """Returns the key's owner. Raises HttpError."""
        if self._is_own_host is not None and not self._is_own_host(host):
            message = (
                f"this gateway has no keys, so it serves no host of this name: {host[:200]!r}; see --allowed-hosts"
            )
            raise HttpError(403, message, code="wrong_host")
        if _is_open(path):
            return None
        name = None
        if self._keys is not None:
            name = self._keys.name_of(key)
            if name is None:
                what = "the request has no key" if key is None else "the key is not known"
                raise unauthorized(f"{what}; send it as `Authorization: Bearer KEY`")
        return name

    def _take_place(self, path: str, name: str | None) -> bool:
        """Returns whether the request takes one of the places. Raises HttpError.

        A slow reader of the page holds up nobody, and neither does who has no key.
        """
        if _is_open(path):
            return False
        if not self._places.may_take(name):
            raise too_many(f"too many open requests; at most {self._max_open} are allowed, divided between keys")
        self._places.take(name)
        return True


def _is_open(path: str) -> bool:
    """Returns whether anyone may ask."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDER)


def key_of(request: Request) -> str | None:
    key: str | None = request.state.key
    return key


def owner_of(request: Request) -> str | None:
    """Returns the name of the key's owner; None without keys."""
    owner: str | None = request.state.owner
    return owner


def take_request_id_from_body(request: Request, given: str) -> str:
    """Falls back to the header's. Not truncated: the coordinator refuses one that is too long."""
    state: MutableMapping[str, Any] = request.scope["state"]
    _set_request_id(state, given[:MAX_ID_CHARACTERS] or state["request_id"])
    return given or str(state["request_id"])


def _take_request_id_from_headers(state: MutableMapping[str, Any], headers: Headers) -> None:
    given = headers.get(REQUEST_ID_HEADER, "")
    if len(given) > MAX_ID_CHARACTERS or not given.isprintable():
        message = f"{REQUEST_ID_HEADER} must be at most {MAX_ID_CHARACTERS} printable characters"
        raise bad_request(REQUEST_ID_HEADER, message)
    if given:
        _set_request_id(state, given)


def _set_request_id(state: MutableMapping[str, Any], name: str) -> None:
    # Responses read the state; log lines read the context variable, which tasks inherit.
    state["request_id"] = name
    logs.request_id.set(name)


def _request_id_headers(state: MutableMapping[str, Any], names: Sequence[str]) -> list[tuple[bytes, bytes]]:
    value = quote(state["request_id"], safe=_PLAIN).encode()
    return [(name.encode(), value) for name in names]


def _read_host(scope: Scope, headers: Headers) -> str:
    """Returns the host without its port. Raises HttpError (RFC 9112, 3.2)."""
    named = headers.getlist("host") or (["localhost"] if scope["http_version"] == "1.0" else [])
    if len(named) == 1 and (found := _HOST.fullmatch(named[0])):
        return found[1]
    raise bad_request("host", "exactly one Host header is required, HOST or HOST:PORT")


def _read_key(headers: Headers) -> str | None:
    """Reads `Authorization: Bearer KEY`, the password of `Basic`, or `X-API-Key`."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except (binascii.Error, UnicodeDecodeError):
            return None
    return headers.get("x-api-key") or None
