"""Five times as many requests as the services can serve, some from bad clients: the latency of accepted ones.

python -m benchmarks.overload [--minutes 2] [--times 5] [--at-once 8] [--waiting 128] [--max-tokens 48]
                              [--unread-mib 1]

A closed loop with one client per slot first measures the capacity. Then requests arrive at a fixed rate. One of ten
asks for 64 samples with log-probabilities, one for four long samples that it does not read for a while, and one
disconnects after its first token. A request counts as many times as it has samples, since each takes a slot. The queue
holds two requests of 64, so that some are accepted throughout.

Reports times between responses of clients that read, times to refusal, outcomes by kind of request, and the services'
memory. Exits with 1 if the p99 of those times is more than twice that at capacity, if the coordinator's memory grows
too much, or if a request fails for any other reason.
"""

import argparse
import asyncio
import contextlib
import itertools
import math
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import grpc.aio
import numpy as np

from benchmarks.deployment import embedded_pair
from benchmarks.prompts import first_turns
from benchmarks.services import OWN_PROMPTS
from benchmarks.soak import make_workload, watch_memory
from paceline.cli.services import Services
from paceline.client import AsyncClient
from paceline.errors import PacelineError, ResourceExhausted
from paceline.loadtest.load_generator import Extent, Runner
from paceline.loadtest.workload import ClosedLoop, Variant, poisson_arrivals
from paceline.rpc.generation_messages import make_request
from paceline.rpc.status import error_of_call
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2_grpc

VARIANT = Variant("default", SpeculationParams())
NUM_SAMPLES = 64
# The numbers, modulo ten, of special requests; all others are read normally.
MANY_SAMPLES, UNREAD, VANISHING = 3, 5, 8
# The unread ask for more than the coordinator keeps of an answer, and begin to read after so long.
UNREAD_SAMPLES, UNREAD_TOKENS, UNREAD_S = 4, 1000, 45.0
# Their connections take 64 KiB ahead of the reader; others take megabytes on a fast network.
TAKES_LITTLE = [("grpc.http2.bdp_probe", 0)]
SAMPLES_PER_REQUEST = (8 + NUM_SAMPLES + UNREAD_SAMPLES) / 10
MOST_TIMES_P99 = 2.0
# By how much the coordinator may grow for those who run and wait, and for what it remembers of answers. It is all taken
# within a minute.
GROWTH_MIB = 48.0


@dataclass(slots=True)
class Felt:
    """Observations of clients."""

    gaps_ms: list[float] = field(default_factory=list)
    refused_ms: list[float] = field(default_factory=list)
    # By kind of client, and end.
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)


class Crowd:
    """Clients of four kinds."""

    def __init__(self, client: AsyncClient, address: str, max_tokens: int) -> None:
        self._client = client
        self._address = address
        self._sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=0)
        self._texts = first_turns(OWN_PROMPTS)
        self._kinds: dict[int, tuple[str, Callable[[str], Awaitable[str]]]] = {
            MANY_SAMPLES: (f"{NUM_SAMPLES} samples", self._ask_for_many),
            UNREAD: ("unread", self._leave_unread),
            VANISHING: ("vanishing", self._vanish),
        }
        self.felt = Felt()

    async def ask(self, number: int) -> None:
        """Sends one request; its number selects the kind."""
        kind, ask = self._kinds.get(number % 10, ("reading", self._read))
        started_s = time.perf_counter()
        try:
            end = await ask(f"({number}) {self._texts[number % len(self._texts)]}")
        except ResourceExhausted:
            self.felt.refused_ms.append((time.perf_counter() - started_s) * 1e3)
            end = "refused"
        except PacelineError as error:
            self.felt.failures.append(f"{kind}: {error}")
            end = "failed"
        self.felt.ends[kind, end] += 1

    async def _read(self, prompt: str) -> str:
        await self._time_gaps(prompt, self._sampling)
        return "answered"

    async def _ask_for_many(self, prompt: str) -> str:
        await self._time_gaps(prompt, replace(self._sampling, n=NUM_SAMPLES, logprobs=20, temperature=0.8))
        return "answered"

    async def _time_gaps(self, prompt: str, sampling: SamplingParams) -> None:
        last_s: dict[int, float] = {}
        async for chunk in self._client.stream(prompt, sampling):
            now_s = time.perf_counter()
            if chunk.index in last_s:
                self.felt.gaps_ms.append((now_s - last_s[chunk.index]) * 1e3)
            last_s[chunk.index] = now_s

    async def _vanish(self, prompt: str) -> str:
        async with contextlib.aclosing(self._client.stream(prompt, self._sampling)) as pieces:
            async for _ in pieces:
                break
        return "gone"

    async def _leave_unread(self, prompt: str) -> str:
        """Uses a separate connection, so that only this answer is held back."""
        sampling = replace(self._sampling, n=UNREAD_SAMPLES, max_tokens=UNREAD_TOKENS, logprobs=20, temperature=0.8)
        request = make_request(prompt, sampling, None, False)
        num_tokens = 0
        async with grpc.aio.insecure_channel(self._address, options=TAKES_LITTLE) as channel:
            try:
                async for response in generation_pb2_grpc.GenerationStub(channel).Generate(request):
                    if num_tokens == 0:
                        await asyncio.sleep(UNREAD_S)
                    num_tokens += len(response.token_ids)
            except grpc.aio.AioRpcError as error:
                raised = error_of_call(error, self._address)
                # Whoever is refused at once gets no token.
                if num_tokens and isinstance(raised, ResourceExhausted):
                    return "ended for being unread"
                raise raised from None
        if num_tokens != UNREAD_SAMPLES * UNREAD_TOKENS:
            raise PacelineError(f"{num_tokens} tokens came, of {UNREAD_SAMPLES * UNREAD_TOKENS}")
        return "read late, and whole"


async def measure(client: AsyncClient, services: Services, arguments: argparse.Namespace) -> bool:
    """Reports accepted requests. Returns whether they pass."""
    rate, calm_ms = await measure_capacity(client, arguments)
    memory: list[dict[str, float]] = []
    watcher = asyncio.create_task(watch_memory(services, memory))
    crowd = Crowd(client, services.address, arguments.max_tokens)
    started_s = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, due_s in enumerate(poisson_arrivals(arguments.times * rate / SAMPLES_PER_REQUEST, 0)):
            if due_s > 60 * arguments.minutes:
                break
            await asyncio.sleep(started_s + due_s - time.perf_counter())
            group.create_task(crowd.ask(number))
    watcher.cancel()
    return report(crowd.felt, calm_ms, memory, arguments)


async def measure_capacity(client: AsyncClient, arguments: argparse.Namespace) -> tuple[float, list[float]]:
    """Returns generations per second, and milliseconds between responses, at one client per slot."""
    runner = Runner([client], make_workload(arguments.max_tokens), lambda record: None)
    extent = Extent(requests=8 * arguments.at_once, duration_s=math.inf, warmup=4)
    run = (await runner.run(ClosedLoop(arguments.at_once), [VARIANT], extent))[VARIANT.name]
    rate = len(run.records) / run.wall_s
    arrivals = [[arrival.at_ms for arrival in record.arrivals] for record in run.records]
    calm_ms = [later - sooner for each in arrivals for sooner, later in itertools.pairwise(each)]
    print(f"at capacity: {rate:.2f} generations/s; between responses {_percentiles(calm_ms)}", flush=True)
    return rate, calm_ms


def report(felt: Felt, calm_ms: list[float], memory: list[dict[str, float]], arguments: argparse.Namespace) -> bool:
    """Returns whether the run passes."""
    ratio = np.percentile(felt.gaps_ms, 99) / np.percentile(calm_ms, 99)
    num_requests = sum(felt.ends.values())
    print(f"{arguments.times:g} x that, in {num_requests} requests: between responses {_percentiles(felt.gaps_ms)}")
    print(f"p99 {ratio:.2f} x that at capacity; at most {MOST_TIMES_P99:g} x")
    print(f"refused after {_percentiles(felt.refused_ms)}")
    for (kind, end), count in sorted(felt.ends.items()):
        print(f"{kind}: {count} {end}")
    for failure, count in Counter(felt.failures).most_common():
        print(f"failed {count} x: {failure}")
    for name in memory[0]:
        sizes = [sample[name] for sample in memory]
        print(f"resident, {name}: {sizes[0]:.0f} MiB at first, {max(sizes):.0f} at most, {sizes[-1]:.0f} at last")
    grown = max(sample["coordinator"] for sample in memory) - memory[0]["coordinator"]
    most = GROWTH_MIB + arguments.unread_mib
    print(f"the coordinator grew by {grown:.0f} MiB; at most {most:.0f}")
    return bool(ratio <= MOST_TIMES_P99) and grown <= most and not felt.failures


def _percentiles(values_ms: list[float]) -> str:
    p50, p99 = np.percentile(values_ms, [50, 99])
    return f"p50 {p50:.1f} ms, p99 {p99:.1f} ms ({len(values_ms)})"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--times", type=float, default=5.0, help="generations asked for, over those that can be made")
    parser.add_argument("--at-once", type=int, default=8, help="places for generations")
    parser.add_argument("--waiting", type=int, default=2 * NUM_SAMPLES, help="generations that may wait for a place")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--unread-mib", type=int, default=1, help="the coordinator's max_unread_memory")
    arguments = parser.parse_args()
    coordinator_settings = {
        "max_num_seqs": arguments.at_once,
        "max_queue_size": arguments.waiting,
        "max_unread_memory": f"{arguments.unread_mib}MiB",
    }
    async with embedded_pair(coordinator_settings=coordinator_settings, kv_cache_memory="1GiB") as (services, client):
        sys.exit(not await measure(client, services, arguments))


if __name__ == "__main__":
    asyncio.run(main())
