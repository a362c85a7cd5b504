"""Waiting for a fuller batch: tokens per second without and with the policy, in one run.

python -m benchmarks.batch_delay [--at-once 4,16,64] [--tokens 48] [--repeats 4]

There is one deployment per policy, and only one is busy at a time; they take turns at each number of clients, in a new
order each time.
"""

import argparse
import asyncio
import contextlib
import random
import statistics
import time
from collections import defaultdict

from benchmarks.deployment import embedded_pair
from benchmarks.prompts import first_turns
from benchmarks.services import OWN_PROMPTS
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

POLICIES = {"off": False, "on": True}
KINDS = {
    "plain": SpeculationParams(enabled=False),
    "k = 4": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
}


async def speed(client: AsyncClient, prompts: list[str], tokens: int, speculation: SpeculationParams) -> float:
    """Returns tokens per second of wall time, prompts included, all prompts at once."""
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    started_s = time.perf_counter()
    done = await asyncio.gather(*(client.complete(prompt, params, speculation) for prompt in prompts))
    return sum(len(each.token_ids) for each in done) / (time.perf_counter() - started_s)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--at-once", default="4,16,64")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=4)
    arguments = parser.parse_args()
    own = first_turns(OWN_PROMPTS)
    async with contextlib.AsyncExitStack() as stack:
        clients = {}
        for policy, waits in POLICIES.items():
            pair = embedded_pair(batch_delay=waits, max_model_len=2048)
            _, clients[policy] = await stack.enter_async_context(pair)
            await speed(clients[policy], own[:2], 16, KINDS["k = 4"])
        order = random.Random(0)
        for at_once in (int(each) for each in arguments.at_once.split(",")):
            prompts = [own[index % len(own)] for index in range(at_once)]
            for kind, speculation in KINDS.items():
                speeds: dict[str, list[float]] = defaultdict(list)
                for _ in range(arguments.repeats):
                    for policy in order.sample(list(POLICIES), len(POLICIES)):
                        speeds[policy].append(await speed(clients[policy], prompts, arguments.tokens, speculation))
                off, on = (statistics.mean(speeds[policy]) for policy in POLICIES)
                print(
                    f"{at_once:3d} at once, {kind}: tokens/s off {off:.1f}, on {on:.1f} ({on / off:.2f} x)", flush=True
                )


if __name__ == "__main__":
    asyncio.run(main())
