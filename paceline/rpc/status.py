"""Exceptions <-> grpc.StatusCode: the only place that knows both."""

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


def error_of_call(error: grpc.aio.AioRpcError, address: str) -> errors.PacelineError:
    """The exception for a call to the coordinator at `address` that ended with an error."""
    details = error.details() or ""
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_NOT_CONNECTED):
        return errors.Unavailable(f"{NO_ANSWER} {address}; is `paceline up` running?")
    if error.code() is grpc.StatusCode.UNAVAILABLE and details.startswith(_CONNECTION_LOST):
        return errors.Unavailable(f"lost the coordinator at {address}: {details}")
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unavailable(f"what answers at {address} is not a coordinator: {details}")
    raised = error_of(error.code(), details)
    hint = dict(error.trailing_metadata() or ()).get(RETRY_AFTER_KEY)
    if isinstance(raised, errors.ResourceExhausted) and hint is not None:
        raised.retry_after_s = int(hint) / 1e3
    return raised


def error_of(code: grpc.StatusCode, message: str) -> errors.PacelineError:
    """The exception for a status code that came from a server."""
    if code is grpc.StatusCode.FAILED_PRECONDITION:
        return errors.RequestError(message)
    kind = next((kind for kind, known in _CODES if known is code), errors.Unavailable)
    return kind(message)


def error_of_number(number: int, message: str) -> errors.PacelineError:
    """The exception for a `Failure`."""
    code = next((code for code in grpc.StatusCode if code.value[0] == number), grpc.StatusCode.UNKNOWN)
    return error_of(code, message)
