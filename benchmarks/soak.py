"""Ten minutes of open load at 80 % of capacity: failures, latency and memory by thirds.

python -m benchmarks.soak [--minutes 10] [--share 0.8] [--at-once 8] [--max-tokens 48] [--kv-cache-memory 256MiB]

A closed loop first measures the capacity. The cache is small enough to fill up in the first third, since a cache that
is not full grows legitimately.
"""

import argparse
import asyncio
import itertools
import math
import sys
import time

import numpy as np

from benchmarks.deployment import embedded_pair
from benchmarks.memory import resident_mib
from benchmarks.prompts import first_turns
from benchmarks.services import OWN_PROMPTS
from paceline.cli.services import Services
from paceline.client import Prompt
from paceline.loadtest.load_generator import Extent, Runner, Workload
from paceline.loadtest.metrics import Record
from paceline.loadtest.workload import ClosedLoop, OpenLoop, Variant
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

SAMPLE_EVERY_S = 5.0
VARIANT = Variant("default", SpeculationParams())


async def watch_memory(services: Services, samples: list[dict[str, float]]) -> None:
    while True:
        samples.append({name: resident_mib(pid) for name, pid in services.pids.items()})
        await asyncio.sleep(SAMPLE_EVERY_S)


def make_workload(max_tokens: int) -> Workload:
    own = first_turns(OWN_PROMPTS)
    numbers = itertools.count()

    def prompt_of(index: int, variant: str) -> Prompt:
        # Numbered, so that no two are the same.
        return f"({next(numbers)}) {own[index % len(own)]}"

    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0)
    return Workload(prompt_of, sampling, raw=False, timeout_s=300.0)


def report(records: list[Record], wall_s: float, memory: list[dict[str, float]]) -> None:
    records = sorted(records, key=lambda record: record.index)
    third = math.ceil(len(records) / 3)
    for number, start in enumerate(range(0, len(records), third), start=1):
        part = [record for record in records[start : start + third] if record.is_ok]
        ttft = [record.ttft_ms or 0.0 for record in part]
        whole = [record.e2e_ms or 0.0 for record in part]
        print(
            f"third {number}: {len(part)} requests, first token p50 {np.percentile(ttft, 50):.0f} p99 "
            f"{np.percentile(ttft, 99):.0f} ms, whole p50 {np.percentile(whole, 50):.0f} "
            f"p90 {np.percentile(whole, 90):.0f} p99 {np.percentile(whole, 99):.0f} ms"
        )
    third = math.ceil(len(memory) / 3)
    for name in memory[0]:
        sizes = [max(sample[name] for sample in memory[at : at + third]) for at in range(0, len(memory), third)]
        print(f"resident at most, {name}: {', '.join(f'{size:.0f}' for size in sizes)} MiB in each third")
    failures = [record.failure for record in records if record.failure]
    print(f"{len(records)} requests in {wall_s:.0f} s, {len(failures)} failed {failures[:3]}")
    sys.exit(bool(failures))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--share", type=float, default=0.8)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--kv-cache-memory", default="256MiB")
    arguments = parser.parse_args()
    async with embedded_pair(kv_cache_memory=arguments.kv_cache_memory) as (services, client):
        runner = Runner([client], make_workload(arguments.max_tokens), lambda record: None)
        closed = ClosedLoop(arguments.at_once)
        extent = Extent(requests=8 * arguments.at_once, duration_s=math.inf, warmup=4)
        capacity = (await runner.run(closed, [VARIANT], extent))[VARIANT.name]
        rate = len(capacity.records) / capacity.wall_s
        print(
            f"capacity with {closed.label}: {rate:.2f} requests/s; open loop at {arguments.share * rate:.2f}",
            flush=True,
        )
        memory: list[dict[str, float]] = []
        watcher = asyncio.create_task(watch_memory(services, memory))
        started_s = time.perf_counter()
        seconds = 60 * arguments.minutes
        open_loop = OpenLoop(arguments.share * rate)
        extent = Extent(requests=10**6, duration_s=seconds, warmup=0)
        run = (await runner.run(open_loop, [VARIANT], extent))[VARIANT.name]
        watcher.cancel()
        report(run.records, time.perf_counter() - started_s, memory)


if __name__ == "__main__":
    asyncio.run(main())
