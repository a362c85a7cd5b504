"""An upgrade: every service is ended in order and started again, one after the other, while requests come in."""

import asyncio
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from paceline.rpc.health import instance_at
from tests.conftest import TINY
from tests.services import Service, free_port, running, spawn_service, start_service
from tests.telling import Tell

NUM_WORKERS = 6
PROMPTS = [f"t{number} t{number + 7}" for number in range(5)]
BODY: dict[str, Any] = {"max_tokens": 200, "ignore_eos": True}
# Nothing answers, or the connection ended before the answer began: what a load balancer tries elsewhere.
NOT_SERVED = (httpx2.ConnectError, httpx2.RemoteProtocolError, httpx2.ReadError)


@dataclass(slots=True)
class Deployment:
    """Draft, target, two coordinators over them, two gateways over these."""

    folder: Path
    services: dict[str, Service] = field(default_factory=dict)

    @property
    def gateways(self) -> list[str]:
        return [service.address for name, service in self.services.items() if name.startswith("gateway")]

    def start(self, name: str, *flags: str, address: str = "") -> None:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        module = name.partition(" ")[0]
        if module == "gateway":
            self.services[name] = spawn_service(module, folder, *flags, address=address or f"127.0.0.1:{free_port()}")
        else:
            self.services[name] = start_service(module, folder, *flags, address=address)

    def start_all(self) -> None:
        for name in ("draft_server", "target_server"):
            self.start(name, *TINY)
        servers = self.services["draft_server"].address, self.services["target_server"].address
        for name in ("coordinator a", "coordinator b"):
            self.start(name, "--draft", servers[0], "--target", servers[1])
        coordinators = ",".join(self.services[f"coordinator {letter}"].address for letter in "ab")
        for name in ("gateway a", "gateway b"):
            self.start(name, "--coordinators", coordinators)

    def restart(self, name: str) -> int:
        """Its exit status."""
        old = self.services[name]
        status = old.stop()
        self.start(name, *old.process.args[5:], address=old.address)
        return status


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    made = Deployment(tmp_path)
    try:
        made.start_all()
        yield made
    finally:
        with running(*made.services.values()):
            pass


async def until_ready(gateways: list[str]) -> None:
    async with asyncio.timeout(60):
        for listen in gateways:
            while await asyncio.to_thread(instance_at, listen) is None:
                await asyncio.sleep(0.05)


async def answer(http: httpx2.AsyncClient, gateways: Iterator[str], number: int) -> str:
    """As through a load balancer: where nobody serves it the request goes to the next gateway."""
    body = {**BODY, "prompt": PROMPTS[number % len(PROMPTS)], "seed": number % 10, "temperature": 0.8 * (number % 2)}
    async with asyncio.timeout(60):
        while True:
            try:
                response = await http.post(f"http://{next(gateways)}/v1/completions", json=body)
            except NOT_SERVED:
                await asyncio.sleep(0.02)
                continue
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["text"])


@pytest.mark.slow
async def test_a_rolling_restart_under_load_fails_no_request(deployment: Deployment, tell: Tell) -> None:
    await until_ready(deployment.gateways)
    gateways, numbers = itertools.cycle(deployment.gateways), itertools.count()
    async with httpx2.AsyncClient(timeout=60) as http:
        expected = [await answer(http, gateways, number) for number in range(10)]
        is_over = asyncio.Event()

        async def work() -> None:
            while not is_over.is_set():
                number = next(numbers)
                assert await answer(http, gateways, number) == expected[number % 10]

        workers = [asyncio.create_task(work()) for _ in range(NUM_WORKERS)]
        served = {}
        for name in list(deployment.services):
            before = next(numbers)
            assert await asyncio.to_thread(deployment.restart, name) == 0, name
            await until_ready(deployment.gateways)
            served[name] = next(numbers) - before - 1
        is_over.set()
        await asyncio.gather(*workers)
    tell(f"rolling restart: {next(numbers)} requests, 0 failed; begun while it restarted: {served}")
    # All workers may wait for the target.
    assert min(count for name, count in served.items() if name != "target_server") > 0
