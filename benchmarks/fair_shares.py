"""A key with single requests beside one with thousands of samples: its times to first token, against those alone.

python -m benchmarks.fair_shares [--generations 2000] [--at-once 16] [--requests 20] [--max-tokens 64]

A tiny random model; what is measured is the queue. "One key": both have the same, so that all wait in order of arrival; of a
queue that long only a few requests of the second are awaited.
"""

import argparse
import asyncio
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.deployment import embedded_pair
from paceline.client import AsyncClient
from paceline.keys import make_key
from paceline.sampling_params import SamplingParams

SAMPLES_PER_REQUEST = 50
# Requests that wait in order of arrival.
NUM_IN_ORDER = 2


async def first_token_s(client: AsyncClient, number: int, max_tokens: int) -> float:
    started_s = time.perf_counter()
    pieces = client.stream(f"t{number}", SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number), raw=True)
    try:
        await anext(pieces)
        return time.perf_counter() - started_s
    finally:
        await pieces.aclose()


async def singles(client: AsyncClient, count: int, max_tokens: int) -> list[float]:
    return [await first_token_s(client, number, max_tokens) for number in range(count)]


async def beside(client: AsyncClient, heavy: AsyncClient, arguments: argparse.Namespace, count: int) -> list[float]:
    """Returns the times of `count` requests while the other's generations wait."""
    sampling = SamplingParams(max_tokens=arguments.max_tokens, ignore_eos=True, seed=0, n=SAMPLES_PER_REQUEST)
    asking = [
        asyncio.create_task(heavy.complete_all(f"t{number}", sampling, raw=True))
        for number in range(arguments.generations // SAMPLES_PER_REQUEST)
    ]
    while (await client.describe()).running < arguments.at_once:
        await asyncio.sleep(0.01)
    try:
        times = await singles(client, count, arguments.max_tokens)
        if all(each.done() for each in asking):
            raise SystemExit("the other key's generations ended too soon: give it more with --generations")
        return times
    finally:
        for each in asking:
            each.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generations", type=int, default=2000)
    parser.add_argument("--at-once", type=int, default=16)
    parser.add_argument("--requests", type=int, default=20)
    parser.add_argument("--max-tokens", type=int, default=64)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "keys"
        many, few = make_key(path, "many"), make_key(path, "few")
        coordinator_settings = {
            "api_keys": str(path), "max_num_seqs": arguments.at_once, "max_queue_size": 2 * arguments.generations,
            "speculation": False,
        }  # fmt: skip
        async with embedded_pair(
            "none", coordinator_settings=coordinator_settings, target={"model": "dummy:tiny"}, threads=1
        ) as (_, client):
            light, heavy = client.with_key(few), client.with_key(many)
            await singles(light, 3, arguments.max_tokens)
            alone = await singles(light, arguments.requests, arguments.max_tokens)
            fair = await beside(light, heavy, arguments, arguments.requests)
            in_order = await beside(heavy, heavy, arguments, NUM_IN_ORDER)
    base_s = float(np.median(alone))
    print(f"times to first token, as multiples of the median alone ({base_s * 1e3:.1f} ms)")
    for name, times in (("alone", alone), ("beside the other key", fair), ("in one queue with it", in_order)):
        print(f"{name:22s} median {np.median(times) / base_s:8.1f}   worst {max(times) / base_s:8.1f}")


if __name__ == "__main__":
    asyncio.run(main())
