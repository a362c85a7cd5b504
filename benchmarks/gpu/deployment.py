"""The three services on one device, and further coordinators, so that model servers keep running if only alpha changes."""

import asyncio
import contextlib
import re
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.gpu.options import Options
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftLength, SpeculationParams
from tests.services import running as running_services
from tests.services import start_service

PLAIN = SpeculationParams(enabled=False)
# In a server's log: the sum of its budget.
BUDGET = re.compile(r": ([\d,]+) MiB of [\d,]+ \(")


@dataclass(slots=True)
class Deployed:
    """Running services, a client of their coordinator, and the servers' memory logs."""

    services: Services
    client: AsyncClient
    folder: Path
    budgets_mib: dict[str, float]

    @contextlib.asynccontextmanager
    async def with_alpha(self, alpha: float) -> AsyncIterator[AsyncClient]:
        """Yields a client of another coordinator, which accepts drafts with probability `alpha`."""
        addresses = self.services.addresses
        coordinator = await asyncio.to_thread(
            start_service, "coordinator", self.folder, "--target", addresses["target"], "--draft", addresses["draft"],
            "--synthetic-acceptance-rate", str(alpha), address=f"unix:{self.folder}/{alpha}.sock",
        )  # fmt: skip
        with running_services(coordinator):
            async with AsyncClient(coordinator.address) as client:
                yield client


@contextlib.asynccontextmanager
async def deployed(target: dict[str, Any], draft: dict[str, Any], has_lock: bool = True) -> AsyncIterator[Deployed]:
    """`target`, `draft`: settings of the servers. Their logs go to stdout. `has_lock`: as in `paceline up`."""
    budgets_mib: dict[str, float] = {}

    def read(service: str, line: str) -> None:
        if "sequence opened" not in line:
            print(f"  {service}: {line}", flush=True)
        if found := BUDGET.search(line):
            budgets_mib[service] = float(found[1].replace(",", ""))

    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as folder:
        lock = {"compute_lock_file": f"{folder}/compute.lock"} if has_lock else {}
        deployment = make_stack(target | lock, draft | lock, {"listen": f"unix:{folder}/coordinator.sock"})
        async with Services(deployment, read) as services, AsyncClient(services.address) as client:
            yield Deployed(services, client, Path(folder), budgets_mib)


def speculation_of(length: DraftLength) -> SpeculationParams:
    """k = 0 is plain decoding."""
    return PLAIN if length == 0 else SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=length)


def prompts_of(options: Options, count: int) -> list[list[int]]:
    """Returns prompts that differ from the first token on."""
    return [[3 + (7 * index + place) % 500 for place in range(options.prompt_tokens)] for index in range(count)]


async def answer(
    client: AsyncClient, options: Options, at_once: int, speculation: SpeculationParams
) -> tuple[float, list[Completion]]:
    """Returns tokens per second, and the completions. Both caches hold the prompts before timing begins."""
    sampling = SamplingParams(max_tokens=options.tokens, ignore_eos=True)
    prompts, brief = prompts_of(options, at_once), replace(sampling, max_tokens=4)
    await asyncio.gather(*(client.complete(prompt, brief, speculation_of(1)) for prompt in prompts))
    started_s = time.perf_counter()
    done = await asyncio.gather(*(client.complete(prompt, sampling, speculation) for prompt in prompts))
    return at_once * options.tokens / (time.perf_counter() - started_s), done


def rpc_share(done: list[Completion]) -> float:
    """Returns the RPCs' share of the rounds' time."""
    timings = [each.finish.timing for each in done if each.finish is not None]
    whole_ms = sum(each.draft_ms + each.target_ms + each.queued_ms + each.rpc_ms for each in timings)
    return sum(each.rpc_ms for each in timings) / whole_ms
