"""All four services as processes, with keys, metrics, traces and logs in JSON."""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from paceline.client import AsyncClient
from paceline.keys import make_key
from paceline.rpc.health import instance_at
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.gateway.conftest import free_port
from tests.observability.collector import Collector
from tests.observability.scrapes import Scrape, scrape
from tests.services import Service, Trio, running, spawn_service, start_trio

# Words that no log may repeat. The tokenizer knows only t0, t1 and so on; all others are t0 to it.
SECRET = "lighthouse-keeper"
PROMPT = f"{SECRET} t5 t9 t30 t2"
SAMPLED = SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True)
BY_MODEL = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
BY_NGRAM = SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=3)
SERVICES = ("draft", "target", "coordinator", "gateway")
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class Watched:
    """The services, and how to look at them."""

    trio: Trio
    gateway: Service
    key: str
    wrong_key: str
    # HOST:PORT by service.
    metrics: dict[str, str]
    collector: Collector

    @property
    def url(self) -> str:
        return f"http://{self.gateway.address}"

    def client(self, key: str | None = None) -> AsyncClient:
        return AsyncClient(self.trio.address, key or self.key)

    def scrape(self, service: str) -> Scrape:
        return scrape(f"http://{self.metrics[service]}/metrics")

    def log(self, service: str) -> str:
        found = self.gateway if service == "gateway" else getattr(self.trio, service)
        return str(found.log.read_text())

    def lines(self, service: str) -> list[dict[str, Any]]:
        """Its log so far, each line as the object that it must be."""
        return [json.loads(line) for line in self.log(service).splitlines()]

    async def until(self, service: str, name: str, value: float, **labels: str) -> None:
        """Waits for what is counted after the answer's end."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while (now := (await asyncio.to_thread(self.scrape, service)).value(name, **labels)) != value:
            assert time.monotonic() < deadline_s, f"{name} {labels} of the {service} is {now}, not {value}"
            await asyncio.sleep(0.02)

    async def until_logged(self, service: str, message: str, **fields: Any) -> dict[str, Any]:
        """The first such line, once it is there."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while True:
            for line in self.lines(service):
                if line["message"] == message and fields.items() <= line.items():
                    return line
            assert time.monotonic() < deadline_s, f"the {service} logged no {message!r} with {fields}"
            await asyncio.sleep(0.02)


@pytest.fixture(scope="session")
def collector() -> Iterator[Collector]:
    collector = Collector()
    with pytest.MonkeyPatch.context() as patched:
        # Milliseconds from a span's end to its batch; the library's own 5 s are long for a test.
        patched.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        yield collector
    collector.close()


@pytest.fixture(scope="session")
def watched(tmp_path_factory: pytest.TempPathFactory, collector: Collector) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("watched")
    key = make_key(folder / "keys", "alice")
    metrics = {service: f"127.0.0.1:{free_port()}" for service in SERVICES}
    common = ("--log-format", "json", "--traces", collector.address)
    flags = {service: (*common, "--metrics", address) for service, address in metrics.items()}
    keys = ("--api-keys", str(folder / "keys"))
    with start_trio(
        folder,
        (*UNLIKE_TARGET, "--check-integrity", *flags["target"]),
        (*UNLIKE_DRAFT, "--check-integrity", *flags["draft"]),
        (*keys, *flags["coordinator"]),
    ) as trio:
        listen = f"127.0.0.1:{free_port()}"
        gateway = spawn_service(
            "gateway", folder, "--coordinators", trio.address, *keys, *flags["gateway"], address=listen
        )
        with running(gateway):
            _wait_until_there(gateway)
            yield Watched(trio, gateway, key, "wrong-key-of-somebody", metrics, collector)


def _wait_until_there(gateway: Service) -> None:
    deadline_s = time.monotonic() + TIMEOUT_S
    while instance_at(gateway.address) is None:
        assert gateway.process.poll() is None, gateway.log.read_text()
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
