"""What a server makes of answers and errors that gRPC can't carry: a status of its own words, and the next call is served."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import InvalidArgument
from paceline.rpc.channel import MAX_MESSAGE_BYTES, open_channel
from paceline.rpc.health import LIVE
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


SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_server_that_does_not_serve_is_live(tmp_path: Path) -> None:
    """A liveness probe restarts neither a coordinator without a target, nor a server that drains."""
    server = Server(f"unix:{tmp_path}/live.sock")
    server.add_service(generation_pb2.DESCRIPTOR.services_by_name["Generation"], Talkative())
    async with open_channel(await server.start()) as channel:
        stub = health_pb2_grpc.HealthStub(channel)

        async def status(service: str) -> int:
            return int((await stub.Check(health_pb2.HealthCheckRequest(service=service))).status)

        for is_serving, expected in ((True, SERVING), (False, NOT_SERVING), (True, SERVING), (False, NOT_SERVING)):
            await server.set_serving(is_serving)
            assert [await status(""), await status("paceline.v1.Generation"), await status(LIVE)] == [
                expected, expected, SERVING,
            ]  # fmt: skip
        # While it stops, only calls that have begun can tell.
        await server.set_serving(True)
        watches = {name: stub.Watch(health_pb2.HealthCheckRequest(service=name)) for name in ("", LIVE)}
        assert [(await each.read()).status for each in watches.values()] == [SERVING, SERVING]
        stopping = asyncio.create_task(server.stop(0.5))
        assert (await watches[""].read()).status == NOT_SERVING
        await server.set_serving(True)
        # It says nothing else until the call is cut.
        with pytest.raises(grpc.aio.AioRpcError):
            await watches[LIVE].read()
        await stopping


async def test_a_health_check_can_ask_for_one_name(tmp_path: Path) -> None:
    server = Server(f"unix:{tmp_path}/named.sock")
    address = await server.start()
    await server.set_serving(False)

    async def check(*arguments: str) -> int:
        command = [sys.executable, "-m", "paceline.rpc.health", *arguments]
        return (await asyncio.to_thread(subprocess.run, command, capture_output=True, timeout=60)).returncode

    assert [await check(address), await check(address, LIVE), await check(address, "unknown")] == [1, 0, 1]
    await server.stop(0)
