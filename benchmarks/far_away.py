"""Coordinator and model servers 20 ms apart, with packet loss: the same tokens, and how fast.

python -m benchmarks.far_away [--delay-ms 20] [--loss 0.01] [--count 10] [--tokens 48]

Both model servers run on one host, the coordinator on another (`slow_network`). Every prompt is answered first without
delay and loss, then with them: plain and by default, greedy and seeded at temperature 0.8. Exits with 1 if a token
differs.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path

from benchmarks.deployment import DRAFT, MODEL
from benchmarks.prompts import first_turns
from benchmarks.services import OWN_PROMPTS
from benchmarks.slow_network import SlowNetwork
from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

WAYS = {"plain": SpeculationParams(enabled=False), "default": SpeculationParams()}
START_S = 300.0


@contextlib.asynccontextmanager
async def services(network: SlowNetwork, folder: Path) -> AsyncIterator[AsyncClient]:
    """Runs all three on their hosts; yields a client of the coordinator over a unix socket."""
    far = network.addresses["far"]
    draft, target, coordinator = f"{far}:50051", f"{far}:50052", f"unix:{folder}/coordinator.sock"
    commands = [
        [*network.command("far"), sys.executable, "-m", "draft_server", "--model", DRAFT, "--listen", draft],
        [*network.command("far"), sys.executable, "-m", "target_server", "--model", MODEL, "--listen", target],
        [
            *network.command("near"), sys.executable, "-m", "coordinator", "--listen", coordinator,
            "--draft", draft, "--target", target, "--suffix-cache-tokens", "0",
        ],
    ]  # fmt: skip
    processes: list[asyncio.subprocess.Process] = []
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PACELINE_COORDINATOR_CONNECT_TIMEOUT": str(START_S)}
    with (folder / "services.log").open("wb") as log:
        try:
            for command in commands:
                processes.append(await asyncio.create_subprocess_exec(*command, stderr=log, env=environment))
            async with AsyncClient(coordinator) as client:
                await _wait_for(client)
                yield client
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                await process.wait()


async def _wait_for(client: AsyncClient) -> None:
    async with asyncio.timeout(START_S):
        while True:
            try:
                await client.describe()
                return
            except Unavailable:
                await asyncio.sleep(0.2)


async def answers(
    client: AsyncClient, texts: list[str], speculation: SpeculationParams, tokens: int
) -> tuple[list[list[int]], float]:
    """Answers all prompts in order, greedy and seeded. Also returns tokens per second."""
    found = []
    started_s = time.perf_counter()
    for number, text in enumerate(texts):
        for temperature in (0.0, 0.8):
            sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=number)
            found.append((await client.complete(text, sampling, speculation)).token_ids)
    return found, sum(map(len, found)) / (time.perf_counter() - started_s)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay-ms", type=float, default=20.0, help="there and back together")
    parser.add_argument("--loss", type=float, default=0.01, help="of packets, each way")
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    texts = first_turns(OWN_PROMPTS)[: arguments.count]
    differing = 0
    with tempfile.TemporaryDirectory(prefix="paceline-far-") as folder, SlowNetwork().up() as network:
        async with services(network, Path(folder)) as client:
            near = {name: await answers(client, texts, way, arguments.tokens) for name, way in WAYS.items()}
            differing += near["default"][0] != near["plain"][0]
            network.delay_s, network.loss = arguments.delay_ms / 2e3, arguments.loss
            for name, way in WAYS.items():
                found, speed = await answers(client, texts, way, arguments.tokens)
                differing += sum(ours != plain for ours, plain in zip(found, near["plain"][0], strict=True))
                print(f"{name}: {near[name][1]:.1f} tokens/s near, {speed:.1f} far: {speed / near[name][1]:.2f} x")
            print(f"{network.num_passed} packets passed on, {network.num_lost} lost; {differing} answers differ")
    sys.exit(differing > 0)


if __name__ == "__main__":
    asyncio.run(main())
