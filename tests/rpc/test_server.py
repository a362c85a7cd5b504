"""What a server makes of answers and errors that gRPC can't carry: a status of its own words, and the next call is served."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.errors import InvalidArgument
from paceline.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.server import Server
from paceline.v1 import generation_pb2, generation_pb2_grpc


class Talkative:
    """Answers with as much as the request asks for."""

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield generation_pb2.GenerateResponse(text="first")
        yield generation_pb2.GenerateResponse(text="x" * int(request.text))

    async def Describe(self, request: Any, context: Any) -> Any:
        raise InvalidArgument("😀", "😀\n" * 100_000)

    async def Tokenize(self, request: Any, context: Any) -> Any:
        return generation_pb2.TokenIds(ids=[1] * int(request.text))

    async def Detokenize(self, request: Any, context: Any) -> Any:
        return generation_pb2.DetokenizeResponse()


@pytest.fixture
async def stub(tmp_path: Path) -> AsyncIterator[Any]:
    server = Server(f"unix:{tmp_path}/talkative.sock")
    server.add_service(generation_pb2.DESCRIPTOR.services_by_name["Generation"], Talkative())
    async with contextlib.AsyncExitStack() as stack:
        address = await server.start()
        stack.push_async_callback(server.stop, 0)
        yield generation_pb2_grpc.GenerationStub(await stack.enter_async_context(open_channel(address)))


async def test_an_answer_that_no_message_holds_is_out_of_range(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Tokenize(generation_pb2.TokenizeRequest(text=str(MAX_MESSAGE_BYTES)))
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert f"a message may have {MAX_MESSAGE_BYTES}" in caught.value.details()
    call = stub.Generate(generation_pb2.GenerateRequest(text=str(MAX_MESSAGE_BYTES)))
    assert (await call.read()).text == "first"
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call.read()
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    assert len((await stub.Tokenize(generation_pb2.TokenizeRequest(text="5"))).ids) == 5


async def test_the_words_of_an_error_are_cut_to_what_a_header_holds(stub: Any) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await stub.Describe(generation_pb2.DescribeRequest())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details().startswith("😀 😀\n😀\n")
    assert 990 < len(caught.value.details().encode()) <= 1000
