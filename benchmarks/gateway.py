"""The gateway's cost: HTTP against gRPC in turns, CPU per chunk, memory of open streams, and clients that vanish.

python -m benchmarks.gateway [--at-once 1,8,64] [--rounds 6] [--tokens 64] [--streams 500] [--vanishing 1000]
python -m benchmarks.gateway --under ray --at-once 1,16 [--rounds 6] [--tokens 64]

`--under ray` compares a bare gateway with one that Ray Serve started for the same coordinator, with a model so small that
most of the time is the gateways'.

The HTTP client is a bare socket that reads events and keeps its connections, like gRPC, so that no client library's
cost is included.
"""

import argparse
import asyncio
import contextlib
import signal
import socket
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import psutil
import uvloop

from benchmarks.prompts import spread_prompts
from benchmarks.services import OWN_PROMPTS
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient
from paceline.rpc.channel import open_channel
from paceline.rpc.health import instance_at
from paceline.sampling_params import SamplingParams
from paceline.v1 import model_pb2, model_pb2_grpc


@dataclass(slots=True)
class Timed:
    ttft_s: float
    total_s: float
    chunks: int


SERVERS = ({"kv_cache_memory": "512MiB"}, {"kv_cache_memory": "512MiB"}, {"listen": "127.0.0.1:50059"})
# A token a chunk.
SMALL = ({"model": "dummy:tiny", "threads": 1}, {"model": "none"}, {**SERVERS[2], "speculation": False})
Ask = Callable[[str], Awaitable[Timed]]


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class Api:
    """Where a prompt goes, and what of an event is text."""

    path: str
    prompt: str
    limit: str
    text_of: Callable[[dict[str, Any]], str | None]


CHAT = Api(
    "/v1/chat/completions", "messages", "max_tokens",
    lambda event: event["choices"][0]["delta"].get("content"),
)  # fmt: skip
APIS = {
    "chat": CHAT,
    "responses": Api(
        "/v1/responses", "input", "max_output_tokens",
        lambda event: event["delta"] if event["type"] == "response.output_text.delta" else None,
    ),
    "messages": Api(
        "/v1/messages", "messages", "max_tokens",
        lambda event: event["delta"].get("text") if event["type"] == "content_block_delta" else None,
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpAsker:
    """Sends requests over HTTP, on kept connections."""

    port: int
    num_tokens: int
    api: Api = CHAT
    idle: list[Connection] = field(default_factory=list)

    async def open(self, prompt: str) -> Connection:
        reader, writer = self.idle.pop() if self.idle else await asyncio.open_connection("127.0.0.1", self.port)
        body = orjson.dumps(
            {
                self.api.prompt: [{"role": "user", "content": prompt}], self.api.limit: self.num_tokens,
                "temperature": 0, "ignore_eos": True, "stream": True,
            }
        )  # fmt: skip
        head = (
            f"POST {self.api.path} HTTP/1.1\r\nhost: localhost:{self.port}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        return reader, writer

    async def __call__(self, prompt: str) -> Timed:
        started_s = time.perf_counter()
        reader, writer = await self.open(prompt)
        ttft_s, chunks = 0.0, 0
        while (line := await reader.readline()) != b"0\r\n":
            if not line:
                raise SystemExit("error: the gateway closed a connection")
            if line.startswith(b"data: {"):
                text = self.api.text_of(orjson.loads(line[6:]))
                chunks += bool(text)
                if text and not ttft_s:
                    ttft_s = time.perf_counter() - started_s
        await reader.readline()
        self.idle.append((reader, writer))
        return Timed(ttft_s, time.perf_counter() - started_s, chunks)


@dataclass(frozen=True, slots=True)
class GrpcAsker:
    """Sends requests over one gRPC connection."""

    client: AsyncClient
    num_tokens: int

    async def __call__(self, prompt: str) -> Timed:
        started_s, ttft_s, chunks = time.perf_counter(), 0.0, 0
        sampling = SamplingParams(max_tokens=self.num_tokens, ignore_eos=True)
        async for chunk in self.client.stream(prompt, sampling):
            chunks += 1
            if chunk.text and not ttft_s:
                ttft_s = time.perf_counter() - started_s
        return Timed(ttft_s, time.perf_counter() - started_s, chunks)


async def compare(askers: dict[str, Ask], prompts: list[str], at_once: int, rounds: int) -> None:
    """Sends each group of prompts both ways, in alternating order. The first is what the second is compared with."""
    base, other = askers
    found: dict[str, list[Timed]] = {name: [] for name in askers}
    walls_s: dict[str, list[float]] = {name: [] for name in askers}
    for number in range(-1, rounds):
        group = [prompts[(number * at_once + i) % len(prompts)] for i in range(at_once)]
        for ask in askers.values():
            await asyncio.gather(*map(ask, group))
        for name in sorted(askers, reverse=bool(number % 2)):
            started_s = time.perf_counter()
            done = await asyncio.gather(*map(askers[name], group))
            if number >= 0:
                walls_s[name].append(time.perf_counter() - started_s)
                found[name] += done
    ttft_ms = {name: median(each.ttft_s for each in done) * 1e3 for name, done in found.items()}
    ratios = [one / two for one, two in zip(walls_s[base], walls_s[other], strict=True)]
    print(
        f"{at_once:3d} at once: first token {ttft_ms[base]:.1f} ms ({base}), {ttft_ms[other]:.1f} ms ({other}, "
        f"{ttft_ms[other] - ttft_ms[base]:+.1f} ms); tokens/s {other} / {base} "
        f"{sum(walls_s[base]) / sum(walls_s[other]):.3f} (median {median(ratios):.3f})",
        flush=True,
    )


async def cpu_per_chunk(port: int, tokens: int, rounds: int, prompts: list[str], process: psutil.Process) -> None:
    """Compares the APIs, in turns."""
    askers = {name: HttpAsker(port, tokens, api) for name, api in APIS.items()}
    found: dict[str, list[float]] = {name: [] for name in askers}
    for number in range(-1, rounds):
        for name in sorted(askers, reverse=bool(number % 2)):
            before = process.cpu_times()
            done = await asyncio.gather(*map(askers[name], prompts[:8]))
            after = process.cpu_times()
            used_s = after.user + after.system - before.user - before.system
            if number >= 0:
                found[name].append(used_s / sum(each.chunks for each in done) * 1e6)
    for name, each in found.items():
        ratio = median(own / chat for own, chat in zip(each, found["chat"], strict=True))
        print(f"the gateway's CPU: {name} {median(each):.0f} us a chunk, {ratio:.2f} x the chat's", flush=True)


async def hold_streams(ask: HttpAsker, prompts: list[str], count: int, process: psutil.Process) -> None:
    before_mib = process.memory_info().rss / 2**20
    opened = [await ask.open(f"({number}) {prompts[number % len(prompts)]}") for number in range(count)]
    await asyncio.sleep(3.0)
    now_mib = process.memory_info().rss / 2**20
    print(f"memory: {before_mib:.0f} MiB, {now_mib:.0f} MiB with {count} open streams", flush=True)
    for _, writer in opened:
        writer.transport.abort()


async def vanish(ask: HttpAsker, prompts: list[str], count: int, client: AsyncClient, services: Services) -> None:
    """Disconnects each client after its first event."""

    async def one(number: int) -> None:
        async with gate:
            reader, writer = await ask.open(f"({number}) {prompts[number % len(prompts)]}")
            while not (line := await reader.readline()).startswith(b"data:"):
                if not line:
                    raise SystemExit("error: the gateway closed a connection")
            writer.transport.abort()

    gate = asyncio.Semaphore(64)
    await asyncio.gather(*(one(number) for number in range(count)))
    gone_s = time.perf_counter()
    while (running := (await client.describe()).running) and time.perf_counter() < gone_s + 10:
        await asyncio.sleep(0.005)
    took_ms = (time.perf_counter() - gone_s) * 1e3
    gateway = psutil.Process(services.pids["gateway"])
    connections = [
        each
        for each in gateway.net_connections()
        if each.status == psutil.CONN_ESTABLISHED and each.laddr[1] == ask.port
    ]
    print(
        f"{count} clients that vanished: {running} generations left after {took_ms:.0f} ms, {len(connections)} connections, "
        f"{await used_blocks(services)} blocks of the caches; the gateway has {gateway.memory_info().rss / 2**20:.0f} MiB",
        flush=True,
    )


async def used_blocks(services: Services) -> int:
    """Returns the blocks that sequences hold in both caches; a server frees them in its next step."""
    await asyncio.sleep(1.0)
    used = 0
    for name in ("target", "draft"):
        async with open_channel(services.addresses[name]) as channel:
            model_info = await model_pb2_grpc.ModelStub(channel).Describe(model_pb2.DescribeModelRequest())
        used += model_info.total_blocks - model_info.free_blocks
    return used


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.asynccontextmanager
async def gateway_under_ray(coordinator: str) -> AsyncIterator[int]:
    """Runs a gateway as deploy/ray does; yields its port."""
    port, serve = free_port(), Path(sys.executable).with_name("serve")
    if not serve.exists():
        raise SystemExit("error: Ray is not installed: `make ray` installs it")
    application = {
        "name": "gateway",
        "route_prefix": None,
        "import_path": "paceline.ray.applications:gateway",
        "args": {"host": "127.0.0.1", "port": port, "gateway": {"coordinators": coordinator}},
        "deployments": [{"name": "gateway", "ray_actor_options": {"num_cpus": 0.1}}],
    }
    with tempfile.NamedTemporaryFile(suffix=".yaml") as config:
        config.write(orjson.dumps({"proxy_location": "Disabled", "applications": [application]}))
        config.flush()
        process = await asyncio.create_subprocess_exec(serve, "run", config.name, stdout=DEVNULL, stderr=DEVNULL)
        try:
            while await asyncio.to_thread(instance_at, f"127.0.0.1:{port}") is None:
                if process.returncode is not None:
                    raise SystemExit(f"error: `serve run` ended with status {process.returncode}")
                await asyncio.sleep(0.1)
            yield port
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)
            await process.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="1,8,64")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--streams", type=int, default=500)
    parser.add_argument("--vanishing", type=int, default=1000)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--under", choices=["ray"])
    arguments = parser.parse_args()
    prompts = [prompt.text for prompt in spread_prompts(arguments.prompts, 64)]
    listen = f"127.0.0.1:{free_port()}"
    servers = SMALL if arguments.under else SERVERS
    deployment = make_stack(*servers, gateway={"listen": listen, "max_open_requests": 4096})
    async with Services(deployment, lambda name, line: None) as services, AsyncClient(services.address) as client:
        http = HttpAsker(int(listen.rpartition(":")[2]), arguments.tokens)
        sizes = [int(size) for size in arguments.at_once.split(",")]
        if arguments.under:
            async with gateway_under_ray(services.address) as port:
                for at_once in sizes:
                    both: dict[str, Ask] = {"bare": http, "under Ray": HttpAsker(port, arguments.tokens)}
                    await compare(both, prompts, at_once, arguments.rounds)
            return
        process = psutil.Process(services.pids["gateway"])
        askers: dict[str, Ask] = {"gRPC": GrpcAsker(client, arguments.tokens), "HTTP": http}
        for at_once in sizes:
            rounds = max(2, arguments.rounds if at_once < 64 else arguments.rounds // 3)
            await compare(askers, prompts, at_once, rounds)
        await cpu_per_chunk(http.port, 4 * arguments.tokens, 2 * arguments.rounds, prompts, process)
        long = HttpAsker(http.port, 400)
        await hold_streams(long, prompts, arguments.streams, process)
        while (await client.describe()).running:
            await asyncio.sleep(0.1)
        await vanish(long, prompts, arguments.vanishing, client, services)


if __name__ == "__main__":
    uvloop.run(main())
