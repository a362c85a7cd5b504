"""The services that faults fall upon: real processes over two models, by default tiny ones, with a proxy on each link between them."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
from transformers import LlamaConfig

from paceline.client import AsyncClient
from paceline.rpc.health import instance_at
from tests.draft_heads import Target, write_head
from tests.faults.proxy import Proxy
from tests.services import Service, free_port, running, spawn_service, start_service, wait_until_free

FLAGS = (
    "--dtype", "float32", "--quantization", "none", "--kv-cache-memory", "16MiB", "--block-size", "16", "--threads", "1",
    # Prompts are read in many steps.
    "--max-num-batched-tokens", "32", "--check-integrity",
)  # fmt: skip
REAL_FLAGS = ("--kv-cache-memory", "1GiB", "--max-model-len", "1024", "--check-integrity")
WITHOUT_HEAD = ("--draft-head", "none")


@dataclass(frozen=True, slots=True)
class Pair:
    """Flags of a target and a draft server. Each model is the other one's "other weights"."""

    target: tuple[str, ...]
    draft: tuple[str, ...]
    # The target gets a random head.
    head_for: Target
    # Generations have so many times fewer tokens than those of the tiny pair.
    brevity: int = 1


PAIRS = {
    # Two models that seldom agree: drafts are accepted, and rejected.
    "tiny": Pair(("--model", "dummy:tiny-32-a", *FLAGS), ("--model", "dummy:tiny-32-b", *FLAGS), "tiny-32-a"),
    "smollm2": Pair(
        ("--model", "smollm2-135m", *REAL_FLAGS), ("--model", "smollm2-135m-draft", *REAL_FLAGS), "smollm2-135m", 5
    ),
    "qwen": Pair(
        ("--model", "qwen2.5-coder-1.5b", *REAL_FLAGS),
        ("--model", "qwen2.5-coder-0.5b", *REAL_FLAGS),
        LlamaConfig(
            hidden_size=1536, num_attention_heads=12, num_key_value_heads=2, vocab_size=151936,
            max_position_embeddings=32768,
        ),
        10,
    ),
}  # fmt: skip
# Of the second coordinator, which soon says what is wrong with its target.
SHORT_TIMEOUT_S = 3.0
# Of the first: a busy machine starts a server in a minute.
TARGET_TIMEOUT_S = 600.0
READY_S = 60.0


@dataclass(slots=True)
class Deployment:
    """Draft, target, coordinator, gateway; and a coordinator with a short target timeout, which speaks to the target alone."""

    folder: Path
    pair: Pair
    services: dict[str, Service] = field(default_factory=dict)
    # By who is behind it.
    proxies: dict[str, Proxy] = field(default_factory=dict)

    @property
    def coordinator(self) -> str:
        return self.services["coordinator"].address

    @property
    def impatient(self) -> str:
        return self.services["impatient"].address

    @property
    def url(self) -> str:
        return f"http://{self.services['gateway'].address}"

    async def start(self) -> None:
        lock = ("--compute-lock-file", f"{self.folder}/compute.lock")
        write_head(self.folder / "head", model=self.pair.head_for)
        head = ("--draft-head", f"{self.folder}/head")
        for name, flags in (("draft", self.pair.draft), ("target", (*head, *self.pair.target))):
            self.services[name] = spawn_service(f"{name}_server", self._folder(name), *lock, *flags)
        for name in ("draft", "target"):
            await asyncio.to_thread(self.services[name].wait_serving)
            await self._put_proxy(name, Proxy(self.services[name].address, reads_session=True))
        servers = ("--draft", self.proxies["draft"].address, "--target", self.proxies["target"].address)
        servers = (*servers, "--target-timeout", f"{TARGET_TIMEOUT_S:g}")
        alone = (
            "--draft",
            "none",
            "--target",
            self.services["target"].address,
            "--target-timeout",
            f"{SHORT_TIMEOUT_S:g}",
        )
        for name, flags in (("coordinator", servers), ("impatient", alone)):
            # In a thread: the proxies are here.
            self.services[name] = await asyncio.to_thread(start_service, "coordinator", self._folder(name), *flags)
        await self._put_proxy("coordinator", Proxy(self.coordinator))
        flags = ("--coordinators", self.proxies["coordinator"].address)
        listen = f"127.0.0.1:{free_port()}"
        self.services["gateway"] = spawn_service("gateway", self._folder("gateway"), *flags, address=listen)
        await self.until_ready("gateway")

    async def stop(self) -> None:
        with running(*self.services.values()):
            for proxy in self.proxies.values():
                await proxy.stop()

    async def restart(self, name: str, *flags: str) -> None:
        """A service that has ended, at the same address and, if none are given, with the same flags."""
        old = self.services[name]
        flags = flags or tuple(old.process.args[5:])
        self.services[name] = spawn_service(old.module, old.log.parent, *flags, address=old.address)
        await self.until_ready(name)

    async def until_ready(self, name: str) -> None:
        service = self.services[name]
        if name != "gateway":
            await asyncio.to_thread(service.wait_serving)
            return
        async with asyncio.timeout(READY_S):
            while await asyncio.to_thread(instance_at, service.address) is None:
                await asyncio.sleep(0.05)

    async def until_idle(self) -> None:
        """Raises AssertionError where a cache keeps blocks, a generation runs on, or a process has ended: as it does when
        a cache's counts are wrong (--check-integrity)."""
        async with AsyncClient(self.coordinator) as client:
            for _ in range(200):
                if (await client.describe()).running == 0:
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError("a generation runs on")
        for name in ("draft", "target"):
            await wait_until_free(self.services[name])
        # The check follows the last command.
        await asyncio.sleep(0.05)
        for name, service in self.services.items():
            status = service.process.poll()
            assert status is None, f"{name} has ended with {status}:\n{service.log.read_text()[-2000:]}"

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    async def _put_proxy(self, name: str, proxy: Proxy) -> None:
        await proxy.start()
        self.proxies[name] = proxy


@dataclass(slots=True)
class Clients:
    """Of one deployment."""

    grpc: AsyncClient
    impatient: AsyncClient
    http: httpx2.AsyncClient


@contextlib.asynccontextmanager
async def deployed(folder: Path, pair: str = "tiny") -> AsyncIterator[tuple[Deployment, Clients]]:
    """All services, serving."""
    deployment = Deployment(folder, PAIRS[pair])
    try:
        await deployment.start()
        async with (
            AsyncClient(deployment.coordinator) as grpc,
            AsyncClient(deployment.impatient) as impatient,
            httpx2.AsyncClient(base_url=deployment.url, timeout=READY_S * 10) as http,
        ):
            yield deployment, Clients(grpc, impatient, http)
    finally:
        await deployment.stop()
