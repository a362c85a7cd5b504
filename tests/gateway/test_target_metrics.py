"""What a gateway tells of the targets' KV cache, without a request."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from gateway import router
from gateway.app import make_app
from gateway.config import GatewaySettings
from paceline.errors import Unauthenticated
from paceline.rpc.status import abort_with
from paceline.v1 import generation_pb2, model_pb2
from tests.gateway.conftest import free_port
from tests.gateway.fake_coordinator import FakeCoordinator, serve

USAGE, SIZE = "vllm:kv_cache_usage_perc", "vllm:cache_config_info"


class FillingUp(FakeCoordinator):
    def __init__(self) -> None:
        super().__init__()
        self.free_blocks = 100
        self.num_described = 0
        self.needs_key = False

    async def Describe(self, request: Any, context: Any) -> generation_pb2.DescribeResponse:
        self.num_described += 1
        if self.needs_key:
            await abort_with(context, Unauthenticated("an API key is required"))
        model_info = model_pb2.ModelInfo(name="tiny", block_size=16, total_blocks=100, free_blocks=self.free_blocks)
        return generation_pb2.DescribeResponse(target=model_info)


class Scraped:
    def __init__(self, http: httpx2.AsyncClient) -> None:
        self._http = http

    async def lines(self, name: str) -> list[str]:
        text = (await self._http.get("/metrics")).text
        return [line for line in text.splitlines() if line.startswith(name)]

    async def until(self, name: str, labels: str, value: float) -> None:
        async with asyncio.timeout(30):
            while await self.lines(name) != [f"{name}{{{labels}}} {value}"]:
                await asyncio.sleep(0.01)


@pytest.fixture
async def coordinator(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[FillingUp, str]]:
    monkeypatch.setattr(router, "FOLLOW_INTERVAL_S", 0.01)
    fake, address = FillingUp(), f"127.0.0.1:{free_port()}"
    server = await serve(fake, address)
    yield fake, address
    await server.stop(0)


async def test_the_fill_of_the_cache_is_current_without_requests(coordinator: tuple[FillingUp, str]) -> None:
    fake, address = coordinator
    # One that is away is passed over.
    app = make_app(GatewaySettings(coordinators=f"127.0.0.1:{free_port()},{address}"))
    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost")
    async with app.router.lifespan_context(app), http:
        scraped = Scraped(http)
        for free, used in ((100, 0.0), (25, 0.75), (50, 0.5)):
            fake.free_blocks = free
            await scraped.until(USAGE, 'engine="0",model_name="tiny"', used)
        await scraped.until(SIZE, 'block_size="16",engine="0",model_name="tiny",num_gpu_blocks="100"', 1.0)


async def test_a_gateway_without_a_key_of_its_own_asks_once(coordinator: tuple[FillingUp, str]) -> None:
    """Else its coordinators would count an unknown caller each second."""
    fake, address = coordinator
    fake.needs_key = True
    app = make_app(GatewaySettings(coordinators=address))
    async with app.router.lifespan_context(app):
        async with asyncio.timeout(30):
            while not fake.num_described:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert fake.num_described == 1
