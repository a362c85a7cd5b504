"""Errors on the wire: what a gRPC client of any language reads, and the same exception at the other end."""

from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from paceline import errors
from paceline.rpc.channel import open_channel
from paceline.rpc.status import DOMAIN, code_of, error_of, status_of
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.services import Trio

EXCEPTIONS = [
    errors.InvalidArgument.of_value("top_p", 2.0, "from 0 to 1"),
    errors.InvalidArgument.of_value("prompt", "9 tokens", "at most 8", errors.CONTEXT_LENGTH_EXCEEDED),
    errors.ResourceExhausted("the queue is full", 1.5),
    errors.ResourceExhausted("no capacity"),
    *(
        kind("what is wrong")
        for kind in (
            errors.Unauthenticated, errors.NotFound, errors.PositionMismatch, errors.OutOfRange, errors.Aborted,
            errors.Cancelled, errors.PermissionDenied, errors.InternalError, errors.Unavailable, errors.ConfigError,
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_an_exception_comes_out_as_it_went_in(error: Any) -> None:
    received = error_of(status_pb2.Status.FromString(status_of(error).SerializeToString()))
    assert type(received) is type(error)
    assert str(received) == str(error)
    for name in ("field", "problem", "reason", "retry_after_s"):
        assert getattr(received, name, None) == getattr(error, name, None)


def test_a_foreign_exception_keeps_its_text_to_itself() -> None:
    status = status_of(RuntimeError("/etc/secret"))
    assert (code_of(RuntimeError()), status.message) == (
        grpc.StatusCode.INTERNAL, "internal error; see the server's log"
    )  # fmt: skip


@pytest.mark.parametrize(("code", "kind"), [
    (grpc.StatusCode.INVALID_ARGUMENT, errors.RequestError), (grpc.StatusCode.DATA_LOSS, errors.InternalError),
    (grpc.StatusCode.UNKNOWN, errors.Unavailable), (grpc.StatusCode.NOT_FOUND, errors.NotFound),
])  # fmt: skip
def test_a_status_of_another_server_is_known_by_its_code(code: grpc.StatusCode, kind: type[Exception]) -> None:
    assert type(error_of(status_pb2.Status(code=code.value[0], message="x"))) is kind


async def test_any_grpc_client_can_read_the_field_and_the_reason(tiny_trio: Trio) -> None:
    """By Google's published messages alone, from the trailing metadata, as a client in Go or Java does."""
    request = generation_pb2.GenerateRequest(text="hi")
    request.sampling.top_p = 2.0
    async with open_channel(tiny_trio.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            async for _ in generation_pb2_grpc.GenerationStub(channel).Generate(request):
                pass
    trailing = dict(raised.value.trailing_metadata())
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert status.details[1].Unpack(bad)
    assert (info.reason, info.domain) == (errors.INVALID_FIELD, DOMAIN)
    violation = bad.field_violations[0]
    assert (violation.field, violation.description.startswith("is 2.0; it must be ")) == ("top_p", True)
    assert status.message == f"top_p {violation.description}" == raised.value.details()
