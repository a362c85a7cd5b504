"""Exceptions <-> grpc.StatusCode: the only place that knows both."""

import re

import grpc
import grpc.aio

from paceline import errors

# The first class an exception is an instance of decides; so subclasses come before their bases.
_CODES: list[tuple[type[errors.PacelineError], grpc.StatusCode]] = [
    (errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.PositionMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.OutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.Aborted, grpc.StatusCode.ABORTED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED),
    (errors.InternalError, grpc.StatusCode.INTERNAL),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE),
    (errors.ConfigError, grpc.StatusCode.FAILED_PRECONDITION),
]


def code_of(error: Exception) -> grpc.StatusCode:
    """The status code of an exception; INTERNAL for what is none of ours."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.INTERNAL)


def number_of(error: Exception) -> int:
    """The status code as a number, as `Failure.code` carries it."""
    number: int = code_of(error).value[0]
    return number


# Codes besides ours that a repetition does not mend. All others come from the way to the server.
_FAULTS = (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED)

# Trailing metadata that gRPC's own retry policies obey (gRFC A6): milliseconds.
RETRY_AFTER_KEY = "grpc-retry-pushback-ms"


def trailers_of(error: Exception) -> tuple[tuple[str, str], ...]:
    """Trailing metadata that go with an exception's status."""
    if isinstance(error, errors.ResourceExhausted) and error.retry_after_s is not None:
        return ((RETRY_AFTER_KEY, str(int(error.retry_after_s * 1e3))),)
    return ()


# How gRPC's own words begin where nothing answers, and where a connection breaks: UNAVAILABLE may also be a
# coordinator's answer.
_NOT_CONNECTED = ("failed to connect to all addresses", "errors resolving", "DNS resolution failed")
_CONNECTION_LOST = ("Stream removed", "Socket closed", "recvmsg:", "Connection reset", "GOAWAY", "Cancelling all calls")
NO_ANSWER = "no coordinator answers at"
# What gRPC says where one side's TLS is not the other's, or a server that wants a certificate gets none.
_HANDSHAKE = re.compile(
    r"handshake failed.*?(?:OPENSSL_internal:(?P<reason>.+?)(?:: OK|: Invalid certificate verification context)?$|$)"
)
_CUT_OFF = (
    "Socket closed",
    "Connection reset",
    "Broken pipe",
    "GOAWAY",
    "connection attempt timed out before receiving",
)
NO_TRUST = "can't be trusted or does not trust this client"


def error_of_call(error: grpc.aio.AioRpcError, address: str) -> errors.PacelineError:
    """The exception for a call to the coordinator at `address` that ended with an error."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NOT_CONNECTED):
        if trouble := _trouble_of_tls(details):
            return errors.Unavailable(f"what answers at {address} {NO_TRUST}: {trouble}")
        return errors.Unavailable(f"{NO_ANSWER} {address}; is `paceline up` running?")
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_CONNECTION_LOST):
        return errors.Unavailable(f"lost the coordinator at {address}: {details}")
    if error.code() is grpc.StatusCode.CANCELLED:
        # A call that we cancelled ends with asyncio's CancelledError. This one came as the server began to end.
        return errors.Unavailable(f"lost the coordinator at {address}: it takes no more calls")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unavailable(f"what answers at {address} is not a coordinator: {details}")
    raised = error_of(error.code(), details)
    hint = dict(error.trailing_metadata() or ()).get(RETRY_AFTER_KEY)
    if isinstance(raised, errors.ResourceExhausted) and hint is not None:
        raised.retry_after_s = int(hint) / 1e3
    return raised


def _trouble_of_tls(details: str) -> str:
    """Why two sides that reached each other do not speak; empty where nobody was reached."""
    if failed := _HANDSHAKE.search(details):
        return f"TLS handshake failed: {failed['reason'] or 'no reason given'}"
    if "Hostname Verification Check failed" in details:
        return "its certificate is for other names than the address's"
    if cut := next((each for each in _CUT_OFF if each in details), ""):
        return f"{cut}; it may want TLS, or a certificate (docs/tls.md)"
    return ""


def error_of(code: grpc.StatusCode, message: str) -> errors.PacelineError:
    """The exception for a status code that came from a server."""
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return errors.RequestError(message)
    if code in _FAULTS:
        return errors.InternalError(message)
    kind = next((kind for kind, known in _CODES if known is code), errors.Unavailable)
    return kind(message)


def error_of_number(number: int, message: str) -> errors.PacelineError:
    """The exception for a `Failure`."""
    code = next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
    return error_of(code, message)
