"""A gateway in front of hosted services, and clients that are not ours."""

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import openai
import pytest

from gateway.app import make_app
from gateway.config import GatewaySettings
from tests.gateway.fake_coordinator import FakeCoordinator, serve
from tests.hosted import Host, HostedService
from tests.services import Trio, free_port


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway: where it listens, and the services behind it."""

    url: str
    trio: Trio
    service: HostedService

    @property
    def log(self) -> str:
        return self.service.log.read_text(errors="replace")


StartGateway = Callable[..., RunningGateway]


@pytest.fixture(scope="session")
def start_gateway(host: Host) -> StartGateway:
    """Starts a gateway with these flags in front of services."""

    def start(trio: Trio, *flags: str) -> RunningGateway:
        listen = f"127.0.0.1:{free_port()}"
        given = flags if "--coordinators" in flags else ("--coordinators", trio.address, *flags)
        return RunningGateway(f"http://{listen}", trio, host.start("gateway", "--listen", listen, *given))

    return start


@pytest.fixture(scope="session")
def gateway_service(start_gateway: StartGateway, tiny_trio: Trio) -> RunningGateway:
    """In front of a tiny random model."""
    return start_gateway(tiny_trio)


@pytest.fixture(scope="session")
def real_gateway(start_gateway: StartGateway, real_trio: Trio) -> RunningGateway:
    """In front of SmolLM2."""
    return start_gateway(real_trio)


@pytest.fixture
async def http(gateway_service: RunningGateway) -> AsyncIterator[httpx2.AsyncClient]:
    # Without certificates: to load them takes longer than most tests.
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60, verify=False) as client:
        yield client


@pytest.fixture
async def coordinator(tmp_path: Path) -> AsyncIterator[FakeCoordinator]:
    fake = FakeCoordinator()
    server = await serve(fake, f"unix:{tmp_path}/coordinator.sock")
    yield fake
    await server.stop(0)


@pytest.fixture
async def fake_http(coordinator: FakeCoordinator, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A gateway in this process, in front of `coordinator`."""
    app = make_app(GatewaySettings(coordinators=f"unix:{tmp_path}/coordinator.sock"))
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://localhost") as client,
    ):
        yield client


@pytest.fixture(scope="session")
def client(gateway_service: RunningGateway) -> Iterator[openai.OpenAI]:
    """OpenAI's own package."""
    with openai.OpenAI(base_url=f"{gateway_service.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def real_client(real_gateway: RunningGateway) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{real_gateway.url}/v1", api_key="none", max_retries=0) as client:
        yield client
