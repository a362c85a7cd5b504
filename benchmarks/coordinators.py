"""Several coordinators on one pair of servers: does each sequence get its share?

python -m benchmarks.coordinators [--clients 8,8 2,14] [--seconds 10]

Each group of numbers is a run with that many decoding clients per coordinator. Prints tokens per second and client by
coordinator, and the smallest share over the largest.
"""

import argparse
import asyncio
import contextlib
import tempfile
import time
from pathlib import Path

from benchmarks.deployment import embedded_pair
from benchmarks.services import PLAIN, SPECULATIVE
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.services import running, start_service


async def count_tokens(client: AsyncClient, number: int, speculation: SpeculationParams, until_s: float) -> int:
    """Returns the tokens that one client gets; it sends one request after the other."""
    params = SamplingParams(max_tokens=1000, ignore_eos=True)
    num_tokens = 0
    async with contextlib.aclosing(client.stream(f"Tell me story number {number}.", params, speculation)) as pieces:
        async for chunk in pieces:
            num_tokens += len(chunk.token_ids)
            if time.perf_counter() > until_s:
                break
    return num_tokens


async def shares(
    clients: list[AsyncClient], counts: list[int], speculation: SpeculationParams, seconds: float
) -> list[float]:
    """Returns tokens per second and client, by coordinator."""
    until_s = time.perf_counter() + seconds
    groups = [
        asyncio.gather(*(count_tokens(client, number, speculation, until_s) for number in range(count)))
        for client, count in zip(clients, counts, strict=True)
    ]
    done = await asyncio.gather(*groups)
    return [sum(tokens) / len(tokens) / seconds for tokens in done]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", nargs="+", default=["8,8", "2,14"])
    parser.add_argument("--seconds", type=float, default=10.0)
    arguments = parser.parse_args()
    groups = [[int(count) for count in group.split(",")] for group in arguments.clients]
    async with embedded_pair(max_model_len=2048) as (services, first), contextlib.AsyncExitStack() as stack:
        clients = [first]
        for _ in range(1, max(len(group) for group in groups)):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="paceline-bench-")))
            servers = ("--target", services.addresses["target"], "--draft", services.addresses["draft"])
            coordinator = start_service("coordinator", folder, *servers)
            stack.enter_context(running(coordinator))
            clients.append(await stack.enter_async_context(AsyncClient(coordinator.address)))
        for counts in groups:
            for name, speculation in (("plain", PLAIN), ("k = 4", SPECULATIVE)):
                each = await shares(clients[: len(counts)], counts, speculation, arguments.seconds)
                listed = ", ".join(f"{share:.1f} each for {count}" for share, count in zip(each, counts, strict=True))
                print(f"{name}: tokens/s {listed}; smallest over largest {min(each) / max(each):.2f}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
