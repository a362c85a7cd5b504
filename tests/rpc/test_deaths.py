"""A call's error tells whether its server died, ended on purpose or was never reached."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from paceline.client import AsyncClient
from paceline.errors import ConnectionLost, Unavailable, Unreachable
from paceline.rpc.server import Server
from paceline.rpc.status import ACCEPTED
from paceline.v1 import generation_pb2
from tests.faults.proxy import Proxy


class Endless:
    """Answers never end."""

    def __init__(self) -> None:
        self.began, self.accepts = asyncio.Event(), True

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        if self.accepts:
            await context.send_initial_metadata((ACCEPTED,))
        self.began.set()
        await asyncio.Event().wait()
        yield generation_pb2.GenerateResponse()

    Describe = Tokenize = Detokenize = Generate


async def serving(path: Path) -> tuple[Endless, Server, str]:
    servicer, address = Endless(), f"unix:{path}/server.sock"
    server = Server(address)
    server.add_service(generation_pb2.DESCRIPTOR.services_by_name["Generation"], servicer)
    await server.start()
    return servicer, server, address


async def error_of(client: AsyncClient) -> Unavailable:
    with pytest.raises(Unavailable) as raised:
        await client.complete("a", raw=True)
    return raised.value


async def under_way(client: AsyncClient, servicer: Endless) -> asyncio.Task[Unavailable]:
    """A call that the server has. Right after a break the channel may still refuse calls."""
    while True:
        asking, beginning = asyncio.create_task(error_of(client)), asyncio.create_task(servicer.began.wait())
        await asyncio.wait({asking, beginning}, return_when=asyncio.FIRST_COMPLETED)
        if servicer.began.is_set():
            return asking
        beginning.cancel()
        await asyncio.sleep(0.01)


async def test_a_server_that_ends_on_purpose_is_no_death(tmp_path: Path) -> None:
    servicer, server, address = await serving(tmp_path)
    async with AsyncClient(address) as client:
        asking = asyncio.create_task(error_of(client))
        await servicer.began.wait()
        await server.stop(0.1)
        error = await asking
        assert type(error) is Unavailable, "not ConnectionLost"
        assert type(await error_of(client)) is Unreachable, "nobody is there"


@pytest.mark.parametrize("accepts", [True, False])
async def test_a_connection_that_breaks_during_a_call_is_a_death(tmp_path: Path, accepts: bool) -> None:
    servicer, server, address = await serving(tmp_path)
    servicer.accepts = accepts
    proxy = Proxy(address)
    await proxy.start()
    async with AsyncClient(proxy.address) as client:
        asking, told = asyncio.create_task(error_of(client)), asyncio.Event()
        await servicer.began.wait()
        if accepts:
            watching = asyncio.create_task(anext(client.stream("a", raw=True, on_accepted=told.set)))
            await told.wait()
        proxy.cut()
        error = await asking
        assert isinstance(error, ConnectionLost)
        assert error.was_accepted is accepts
        if accepts:
            with pytest.raises(ConnectionLost):
                await watching
        servicer.began.clear()
        asking = await under_way(client, servicer)
        client.drop_calls()
        assert isinstance(await asking, ConnectionLost)
    await proxy.stop()
    await server.stop(0)
