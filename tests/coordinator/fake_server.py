"""A model server that only says what a test tells it to say."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from paceline.rpc.model_messages import PROTOCOL_VERSION
from paceline.rpc.server import Server
from paceline.v1 import model_pb2


class FakeServer:
    """Base of fakes, which add Session."""

    def __init__(self, role: str, **model_info: Any) -> None:
        """`model_info`: further fields of its model info."""
        self.model_info = model_pb2.ModelInfo(role=role, protocol_version=PROTOCOL_VERSION, **model_info)

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield

    async def Describe(self, request: Any, context: Any) -> Any:
        return self.model_info

    async def Tokenizer(self, request: Any, context: Any) -> AsyncIterator[Any]:
        yield model_pb2.TokenizerChunk(file_name="tokenizer.json", data=b"{}")

    async def Truncate(self, request: Any, context: Any) -> Any:
        return model_pb2.TruncateResponse()

    async def Release(self, request: Any, context: Any) -> Any:
        return model_pb2.ReleaseResponse()


@contextlib.asynccontextmanager
async def serving(fake: FakeServer, listen: str) -> AsyncIterator[str]:
    """Yields its address."""
    server = Server(listen)
    server.add_service(model_pb2.DESCRIPTOR.services_by_name["Model"], fake)
    address = await server.start()
    try:
        yield address
    finally:
        await server.stop(0)
