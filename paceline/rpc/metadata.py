"""Call metadata: an API key (`authorization: Bearer KEY`) and a trace (W3C `traceparent`)."""

import re
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from typing import Any

import grpc
import grpc.aio

from paceline.checks import require
from paceline.errors import Unauthenticated
from paceline.keys import KeyRing, check_key
from paceline.rpc.status import abort_with

AUTHORIZATION = "authorization"
SCHEME = "Bearer"
# Supervisors have no key, and health checks reveal nothing else.
_OPEN_METHODS = "/grpc.health.v1.Health/"

# The owner of the running call's key; None if no key is needed.
caller: ContextVar[str | None] = ContextVar("caller", default=None)


class KeyCheck(grpc.aio.ServerInterceptor):
    """Refuses calls without a key of the ring with UNAUTHENTICATED, except health checks."""

    def __init__(self, ring: KeyRing, count_refusal: Callable[[], None] = lambda: None) -> None:
        self._ring = ring
        self._count_refusal = count_refusal

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: grpc.HandlerCallDetails
    ) -> Any:
        if details.method.startswith(_OPEN_METHODS):
            return await continuation(details)
        key = key_of(details.invocation_metadata)
        owner = self._ring.name_of(key)
        if owner is None:
            self._count_refusal()
            return _REFUSE_UNKNOWN if key is not None else _REFUSE_MISSING
        caller.set(owner)
        return await continuation(details)


def key_of(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """Returns None unless the call carries exactly one key."""
    values = [value for name, value in metadata if name == AUTHORIZATION]
    if len(values) != 1 or not isinstance(values[0], str):
        return None
    scheme, _, key = values[0].partition(" ")
    return key.strip() or None if scheme.lower() == SCHEME.lower() else None


def _refusal(text: str) -> grpc.RpcMethodHandler:
    error = Unauthenticated(text)

    async def refuse(messages: Any, context: grpc.aio.ServicerContext) -> None:
        await abort_with(context, error)

    return grpc.stream_stream_rpc_method_handler(refuse)


_REFUSE_MISSING = _refusal(f"the call has no API key; send one as `{AUTHORIZATION}: {SCHEME} KEY`")
_REFUSE_UNKNOWN = _refusal("the API key is not one that this server knows")


class KeyedChannel:
    """A channel whose calls carry a key and other metadata. Its owner closes the channel."""

    def __init__(self, channel: grpc.aio.Channel, key: str | None, *more: tuple[str, str]) -> None:
        """Raises InvalidArgument for a key that no header can carry."""
        self._channel = channel
        keys = () if key is None else ((AUTHORIZATION, f"{SCHEME} {check_key('key', key)}"),)
        self._metadata = (*keys, *more)

    def unary_unary(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_unary(*arguments, **options))

    def unary_stream(self, *arguments: Any, **options: Any) -> Callable[..., Any]:
        return self._keyed(self._channel.unary_stream(*arguments, **options))

    def _keyed(self, start: Callable[..., Any]) -> Callable[..., Any]:
        def call(request: Any, metadata: Iterable[tuple[str, str]] | None = None, **options: Any) -> Any:
            return start(request, metadata=(*self._metadata, *(metadata or ())), **options)

        return call


TRACEPARENT = "traceparent"
_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_metadata(traceparent: str) -> tuple[str, str]:
    is_one = _TRACEPARENT.fullmatch(traceparent) is not None
    require(is_one, TRACEPARENT, traceparent, "VERSION-TRACE-PARENT-FLAGS, as in W3C Trace Context")
    return TRACEPARENT, traceparent


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Returns "" unless the call carries exactly one."""
    values = [value for name, value in metadata or () if name == TRACEPARENT]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""
