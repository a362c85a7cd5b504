"""A small deployment of real processes that hostile clients attack, and the memory and files that it uses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from paceline.rpc.health import instance_at
from tests.services import Service, free_port, running, spawn_service

MODEL = (
    "--model", "dummy:tiny", "--dtype", "float32", "--quantization", "none", "--kv-cache-memory", "16MiB",
    "--block-size", "16", "--threads", "1",
)  # fmt: skip
READY_S = 120.0


@dataclass(frozen=True, slots=True)
class Use:
    """What one process uses."""

    resident_bytes: int
    num_files: int


@dataclass(slots=True)
class Deployment:
    """Draft, target, two coordinators and a gateway in front of them."""

    folder: Path
    services: dict[str, Service] = field(default_factory=dict)

    @property
    def host(self) -> tuple[str, int]:
        """Returns the gateway's address."""
        name, _, port = self.services["gateway"].address.rpartition(":")
        return name, int(port)

    @property
    def url(self) -> str:
        return f"http://{self.services['gateway'].address}"

    async def start(self, *gateway_flags: str) -> None:
        """`gateway_flags`: more of the gateway's."""
        lock = ("--compute-lock-file", f"{self.folder}/compute.lock")
        for name in ("draft_server", "target_server"):
            self._spawn(name, name, *lock, *MODEL)
        for name in ("draft_server", "target_server"):
            await asyncio.to_thread(self.services[name].wait_serving)
        servers = ("--draft", self.services["draft_server"].address, "--target", self.services["target_server"].address)
        names = ("coordinator 1", "coordinator 2")
        for name in names:
            self._spawn(name, "coordinator", *servers)
        for name in names:
            await asyncio.to_thread(self.services[name].wait_serving)
        addresses = ",".join(self.services[name].address for name in names)
        self._spawn(
            "gateway", "gateway", "--coordinators", addresses, *gateway_flags, address=f"127.0.0.1:{free_port()}"
        )
        async with asyncio.timeout(READY_S):
            while await asyncio.to_thread(instance_at, self.services["gateway"].address) is None:
                await asyncio.sleep(0.05)

    def use(self) -> dict[str, Use]:
        """Returns what each process that lives uses."""
        processes = {name: psutil.Process(service.process.pid) for name, service in self.services.items()}
        return {
            name: Use(each.memory_info().rss, each.num_fds())
            for name, each in processes.items()
            if name not in self.dead()
        }

    def dead(self) -> dict[str, int]:
        """Returns the exit status of each process that has ended."""
        statuses = {name: service.process.poll() for name, service in self.services.items()}
        return {name: status for name, status in statuses.items() if status is not None}

    def _spawn(self, name: str, module: str, *flags: str, address: str = "") -> None:
        folder = self.folder / name.replace(" ", "-")
        folder.mkdir()
        self.services[name] = spawn_service(module, folder, *flags, address=address)


@contextlib.asynccontextmanager
async def deployed(folder: Path, *gateway_flags: str) -> AsyncIterator[Deployment]:
    deployment = Deployment(folder)
    try:
        await deployment.start(*gateway_flags)
        yield deployment
    finally:
        with running(*deployment.services.values()):
            pass
