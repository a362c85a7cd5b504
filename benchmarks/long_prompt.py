"""The effect of a long prompt on other requests: inter-token latency and health checks.

python -m benchmarks.long_prompt [--clients 4] [--prompt-tokens 6000] [--quiet-s 8]

Clients decode endlessly; then a prompt of random tokens arrives. A gap is the time between two responses to one client.
A chunk's time is that of the same prompt alone, divided by its number of chunks. All three services' health is checked
every 20 ms.
"""

import argparse
import asyncio
import contextlib
import math
import random
import time
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc.aio
import numpy as np
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.deployment import embedded_pair
from benchmarks.services import PLAIN, SPECULATIVE
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

MAX_NUM_BATCHED_TOKENS = 512
VOCAB_SIZE = 49_152
HEALTH_EVERY_S = 0.02


class Clients:
    """Clients that decode endlessly and record when responses arrive."""

    def __init__(self, client: AsyncClient, speculation: SpeculationParams) -> None:
        self._client = client
        self._speculation = speculation
        # (when, milliseconds since the response before it)
        self.gaps: list[tuple[float, float]] = []

    async def decode(self, number: int) -> None:
        params = SamplingParams(max_tokens=4000, ignore_eos=True)
        last_s = None
        async for _ in self._client.stream(f"Tell me story number {number}.", params, self._speculation):
            now_s = time.perf_counter()
            if last_s is not None:
                self.gaps.append((now_s, (now_s - last_s) * 1e3))
            last_s = now_s

    def between(self, start_s: float, end_s: float) -> list[float]:
        return [gap_ms for at_s, gap_ms in self.gaps if start_s <= at_s <= end_s]


async def ask_health(address: str, answers_ms: list[float]) -> None:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            started_s = time.perf_counter()
            await stub.Check(health_pb2.HealthCheckRequest())
            answers_ms.append((time.perf_counter() - started_s) * 1e3)
            await asyncio.sleep(HEALTH_EVERY_S)


@contextlib.asynccontextmanager
async def background(*coroutines: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(each) for each in coroutines]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def shown(name: str, values: list[float]) -> str:
    return f"{name} p50 {np.percentile(values, 50):.0f} p99 {np.percentile(values, 99):.0f} max {max(values):.0f} ms"


async def time_prompt(client: AsyncClient, prompt: list[int], speculation: SpeculationParams) -> float:
    started_s = time.perf_counter()
    await client.complete(prompt, SamplingParams(max_tokens=1, ignore_eos=True), speculation)
    return time.perf_counter() - started_s


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=6000)
    parser.add_argument("--quiet-s", type=float, default=8.0)
    arguments = parser.parse_args()
    source = random.Random(0)
    async with embedded_pair(max_num_batched_tokens=MAX_NUM_BATCHED_TOKENS) as (services, client):
        health: dict[str, list[float]] = {name: [] for name in services.addresses}
        async with background(*(ask_health(services.addresses[name], health[name]) for name in health)):
            for name, speculation in (("plain", PLAIN), ("k = 4", SPECULATIVE)):
                alone, beside = (
                    [source.randrange(VOCAB_SIZE) for _ in range(arguments.prompt_tokens)] for _ in range(2)
                )
                # The long prompt itself is always plain: its chunks are what the others meet.
                chunk_ms = 1e3 * await time_prompt(client, alone, PLAIN)
                chunk_ms /= math.ceil(arguments.prompt_tokens / MAX_NUM_BATCHED_TOKENS)
                clients = Clients(client, speculation)
                async with background(*(clients.decode(number) for number in range(arguments.clients))):
                    await asyncio.sleep(2)
                    quiet_s = time.perf_counter()
                    await asyncio.sleep(arguments.quiet_s)
                    sent_s = time.perf_counter()
                    took_s = await time_prompt(client, beside, PLAIN)
                    quiet = clients.between(quiet_s, sent_s)
                    pressed = clients.between(sent_s, sent_s + took_s)
                raised_ms = np.percentile(pressed, 99) - np.percentile(quiet, 99)
                print(f"{name}: {shown('gaps without', quiet)}; {shown('during', pressed)} ({len(pressed)} gaps)")
                print(
                    f"{name}: p99 raised by {raised_ms:.0f} ms = {raised_ms / chunk_ms:.2f} chunks of {chunk_ms:.0f} ms; "
                    f"first token of the long prompt after {took_s:.1f} s",
                    flush=True,
                )
        print("; ".join(shown(f"health of {name}", values) for name, values in health.items()))


if __name__ == "__main__":
    asyncio.run(main())
