"""The options of a channel."""

import asyncio
from pathlib import Path

from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc.channel import open_channel
from paceline.rpc.server import Server

# More than a busy machine needs to answer, and far less than a connection may take.
LATE_S = 0.6


async def test_a_server_that_is_slow_to_answer_is_connected_to(tmp_path: Path) -> None:
    """On a machine with more to do than cores, a server's first bytes come late."""
    server = Server(f"unix:{tmp_path}/real.sock")
    await server.start()

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def delay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(LATE_S)
        to_server = await asyncio.open_unix_connection(f"{tmp_path}/real.sock")
        await asyncio.gather(copy(reader, to_server[1]), copy(to_server[0], writer), return_exceptions=True)

    proxy = await asyncio.start_unix_server(delay, f"{tmp_path}/late.sock")
    try:
        async with open_channel(f"unix:{tmp_path}/late.sock") as channel:
            answer = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert answer.status == health_pb2.HealthCheckResponse.SERVING
    finally:
        proxy.close()
        await server.stop(0)
