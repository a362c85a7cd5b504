"""Converts between exceptions and google.rpc.Status: the only place that knows how errors travel.

Details are `google.rpc.ErrorInfo` (reason, and in its metadata an excess), `BadRequest` (an InvalidArgument's field) and
`RetryInfo`. Calls carry them in trailing metadata (`grpc-status-details-bin`), the model servers' streams in `Failure`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from paceline import errors

# Initial metadata of a server that has read the request.
ACCEPTED = ("paceline-accepted", "1")
# The domain of the reasons, in ErrorInfo.
DOMAIN = "paceline"
# (exception, code, reason); subclasses before their bases.
_KINDS: list[tuple[type[errors.PacelineError], grpc.StatusCode, str]] = [
    (errors.InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT, errors.INVALID_FIELD),
    (errors.Unauthenticated, grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    (errors.NotFound, grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    (errors.PositionMismatch, grpc.StatusCode.FAILED_PRECONDITION, "POSITION_MISMATCH"),
    (errors.OutOfRange, grpc.StatusCode.OUT_OF_RANGE, "OUT_OF_RANGE"),
    (errors.Aborted, grpc.StatusCode.ABORTED, "ABORTED"),
    (errors.Cancelled, grpc.StatusCode.CANCELLED, "CANCELLED"),
    (errors.ResourceExhausted, grpc.StatusCode.RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED"),
    (errors.PermissionDenied, grpc.StatusCode.PERMISSION_DENIED, "PERMISSION_DENIED"),
    (errors.FatalRequest, grpc.StatusCode.FAILED_PRECONDITION, "FATAL_REQUEST"),
    (errors.InternalError, grpc.StatusCode.INTERNAL, "INTERNAL"),
    (errors.Unavailable, grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    (errors.ConfigError, grpc.StatusCode.FAILED_PRECONDITION, "BAD_CONFIGURATION"),
]
_OTHER = (grpc.StatusCode.INTERNAL, "INTERNAL")
_CODES = {code.value[0]: code for code in grpc.StatusCode}
# Foreign codes that a retry does not mend.
_FAULTS = (grpc.StatusCode.DATA_LOSS, grpc.StatusCode.UNIMPLEMENTED)
# Trailing metadata may have 8 KiB: the text comes twice in it, and percent-encoded once.
MAX_TEXT_BYTES = 1000


def code_of(error: Exception) -> grpc.StatusCode:
    return _kind_of(error)[0]


def status_of(error: Exception) -> status_pb2.Status:
    """Does not disclose the text of foreign exceptions."""
    code, reason = _kind_of(error)
    status = status_pb2.Status(code=code.value[0])
    status.message = _shortened(
        str(error) if isinstance(error, errors.PacelineError) else "internal error; see the server's log"
    )
    if isinstance(error, errors.InvalidArgument):
        reason = error.reason
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    if isinstance(error, errors.InvalidArgument) and error.excess is not None:
        info.metadata.update({name: str(value) for name, value in asdict(error.excess).items()})
    status.details.add().Pack(info)
    if isinstance(error, errors.InvalidArgument):
        bad = error_details_pb2.BadRequest()
        bad.field_violations.add(field=error.field, description=_shortened(error.problem), reason=reason)
        status.details.add().Pack(bad)
    if isinstance(error, errors.ResourceExhausted) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(int(error.retry_after_s * 1e3))
        status.details.add().Pack(retry)
    return status


async def abort_with(context: grpc.aio.ServicerContext, error: Exception) -> None:
    status = status_of(error)
    packed = rpc_status.to_status(status)
    await context.abort(packed.code, packed.details, packed.trailing_metadata)


def error_of(status: status_pb2.Status) -> errors.PacelineError:
    info, bad, retry = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
    for detail in status.details:
        for each in (info, bad, retry):
            detail.Unpack(each)
    code = _CODES.get(status.code, grpc.StatusCode.UNKNOWN)
    reason = info.reason if info.domain == DOMAIN else ""
    if code is grpc.StatusCode.INVALID_ARGUMENT and bad.field_violations:
        wrong = bad.field_violations[0]
        reason = reason or errors.INVALID_FIELD
        return errors.InvalidArgument(wrong.field, wrong.description, reason=reason, excess=_excess_of(info.metadata))
    kind = next((kind for kind, _, known in _KINDS if known == reason), None) or _kind_of_code(code)
    if kind is errors.ResourceExhausted:
        delay_s = retry.retry_delay.ToTimedelta().total_seconds() if retry.HasField("retry_delay") else None
        return errors.ResourceExhausted(status.message, delay_s)
    return kind(status.message)


def error_of_call(error: grpc.aio.AioRpcError, address: str, was_connected: bool = False) -> errors.PacelineError:
    """`was_connected`: whether the call went out to the server."""
    status = rpc_status.from_call(error)
    if status is not None:
        return error_of(status)
    code, said = error.code(), error.details() or ""
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return errors.Unavailable(f"what answers at {address} is not a coordinator: {said}")
    found = error_of(status_pb2.Status(code=code.value[0], message=said))
    # A call that we cancelled ends with asyncio's CancelledError. This one came as the server ended.
    if not isinstance(found, errors.Unavailable | errors.Cancelled):
        return found
    if was_connected:
        return errors.ConnectionLost(address, said, was_accepted=is_accepted(error.initial_metadata()))
    return errors.Unreachable(address, said)


def is_accepted(initial_metadata: Iterable[tuple[str, str | bytes]] | None) -> bool:
    return ACCEPTED in tuple(initial_metadata or ())


def _excess_of(told: Mapping[str, str]) -> errors.Excess | None:
    try:
        return errors.Excess(int(told["count"]), int(told["limit"]), told["unit"])
    except (KeyError, ValueError):
        return None


def _kind_of(error: Exception) -> tuple[grpc.StatusCode, str]:
    return next(((code, reason) for kind, code, reason in _KINDS if isinstance(error, kind)), _OTHER)


def _kind_of_code(code: grpc.StatusCode) -> type[errors.PacelineError]:
    if code in _FAULTS:
        return errors.InternalError
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
        return errors.RequestError
    return next((kind for kind, known, _ in _KINDS if known is code), errors.Unavailable)


def _shortened(text: str) -> str:
    encoded = text.encode(errors="replace")
    return text if len(encoded) <= MAX_TEXT_BYTES else encoded[: MAX_TEXT_BYTES - 3].decode(errors="ignore") + "…"
