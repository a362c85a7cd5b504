"""Exceptions <-> grpc.StatusCode: the only place that knows both."""

import grpc

from paceline import errors

# The first class an exception is an instance of decides; so subclasses come before their bases.
_CODES: list[tuple[type[errors.PacelineError], grpc.StatusCode]] = [
    (errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND),
    (errors.PositionMismatch, grpc.StatusCode.FAILED_PRECONDITION),
    (errors.OutOfRange, grpc.StatusCode.OUT_OF_RANGE),
    (errors.Aborted, grpc.StatusCode.ABORTED),
    (errors.Cancelled, grpc.StatusCode.CANCELLED),
    (errors.ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (errors.Unsupported, grpc.StatusCode.UNIMPLEMENTED),
    (errors.TimedOut, grpc.StatusCode.DEADLINE_EXCEEDED),
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
