"""Sends a load test's requests and records responses."""

import asyncio
import contextlib
import math
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import TracebackType

import grpc.aio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from paceline.client import AsyncClient, Finish, Prompt
from paceline.errors import PacelineError
from paceline.loadtest.metrics import Arrival, Failure, Record, Run
from paceline.loadtest.workload import ClosedLoop, Load, OpenLoop, Variant, blocks, poisson_arrivals
from paceline.rpc.status import code_of
from paceline.sampling_params import SamplingParams

# A client waits this long after a failed request, so that a server that is down or full is not flooded.
PAUSE_AFTER_FAILURE_S = 0.05


@dataclass(frozen=True, slots=True)
class Workload:
    # Maps a request's index and a variant's name to the prompt.
    prompt_of: Callable[[int, str], Prompt]
    sampling: SamplingParams
    raw: bool
    timeout_s: float

    def sampling_of(self, index: int) -> SamplingParams:
        assert self.sampling.seed is not None
        return replace(self.sampling, seed=(self.sampling.seed + index) % 2**64)


@dataclass(frozen=True, slots=True)
class Extent:
    # Measured requests.
    requests: int
    # No request starts later; with several variants, no block.
    duration_s: float
    # Requests sent first, which are not measured.
    warmup: int


class Runner:
    """Runs loads, round-robin over a deployment's addresses."""

    def __init__(self, clients: list[AsyncClient], workload: Workload, on_done: Callable[[Record], None]) -> None:
        """`on_done` is called for every request, warm-ups included."""
        self._clients = clients
        self._workload = workload
        self._on_done = on_done
        # Each load continues the numbering: prompts sent before may be in a server's prefix cache.
        self._num_asked = 0
        # Variants get the same requests: none may draft from another's answers or an earlier run's.
        self._salt = f"loadtest {secrets.token_hex(8)}"

    async def run(self, load: Load, variants: list[Variant], extent: Extent) -> dict[str, Run]:
        """Returns each variant's run. Variants take turns (see `blocks`)."""
        for variant in variants:
            await self._warm_up(load, variant, extent.warmup)
        records: list[list[Record]] = [[] for _ in variants]
        wall_s = [0.0] * len(variants)
        deadline_s = time.perf_counter() + extent.duration_s
        requests = range(self._num_asked, self._num_asked + extent.requests)
        for block in blocks(len(variants), requests, load.requests_per_slice):
            for part in block:
                started_s = time.perf_counter()
                # A started block is finished, so that all variants answer the same requests.
                until_s = deadline_s if len(variants) == 1 else math.inf
                records[part.variant] += await self._run_slice(part.requests, variants[part.variant], load, until_s)
                wall_s[part.variant] += time.perf_counter() - started_s
            if time.perf_counter() >= deadline_s:
                break
        self._num_asked = max((record.index + 1 for each in records for record in each), default=self._num_asked)
        return {variant.name: Run(records[number], wall_s[number]) for number, variant in enumerate(variants)}

    async def _warm_up(self, load: Load, variant: Variant, num_requests: int) -> None:
        # Warm up with the last prompts, which measured requests reach last.
        requests = range(-1, -1 - num_requests, -1)
        most = load.concurrency if isinstance(load, ClosedLoop) else num_requests
        await self._run_closed(iter(requests), variant, min(most, num_requests), math.inf)

    async def _run_slice(self, requests: range, variant: Variant, load: Load, until_s: float) -> list[Record]:
        match load:
            case ClosedLoop(concurrency):
                return await self._run_closed(iter(requests), variant, concurrency, until_s)
            case OpenLoop(rate):
                return await self._run_open(requests, variant, rate, until_s)

    async def _run_closed(
        self, requests: Iterator[int], variant: Variant, concurrency: int, until_s: float
    ) -> list[Record]:
        records: list[Record] = []

        async def one_client() -> None:
            for index in requests:
                now_s = time.perf_counter()
                if now_s >= until_s:
                    return
                record = await self._ask(index, variant, now_s)
                records.append(record)
                if not record.is_ok:
                    await asyncio.sleep(PAUSE_AFTER_FAILURE_S)

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(one_client())
        return records

    async def _run_open(self, requests: range, variant: Variant, rate: float, until_s: float) -> list[Record]:
        """Starts each request when it is due, however many are running."""
        started_s = time.perf_counter()
        # Seeded by the slice's first request: arrivals differ between slices, not between variants.
        arrivals = poisson_arrivals(rate, self._workload.sampling_of(requests.start).seed or 0)
        tasks: list[asyncio.Task[Record]] = []
        async with asyncio.TaskGroup() as group:
            for index, arrival_s in zip(requests, arrivals, strict=False):
                due_s = started_s + arrival_s
                await asyncio.sleep(min(due_s, until_s) - time.perf_counter())
                if due_s >= until_s:
                    break
                tasks.append(group.create_task(self._ask(index, variant, due_s)))
        return [task.result() for task in tasks]

    async def _ask(self, index: int, variant: Variant, due_s: float) -> Record:
        workload = self._workload
        client = self._clients[index % len(self._clients)]
        arrivals: list[Arrival] = []
        finish: Finish | None = None
        failure: Failure | None = None
        pieces = client.stream(
            workload.prompt_of(index, variant.name), workload.sampling_of(index), variant.speculation, workload.raw,
            cache_salt=f"{self._salt} {variant.name}",
        )  # fmt: skip
        try:
            async with asyncio.timeout(workload.timeout_s), contextlib.aclosing(pieces):
                async for chunk in pieces:
                    if chunk.token_ids:
                        arrivals.append(Arrival((time.perf_counter() - due_s) * 1e3, len(chunk.token_ids)))
                    finish = chunk.finish or finish
        except PacelineError as error:
            failure = Failure(status_of(error), str(error))
        except TimeoutError:
            failure = Failure("TIMED_OUT", f"timed out after {workload.timeout_s:g} s")
        if failure is None and finish is None:
            failure = Failure("INCOMPLETE", "the stream ended without a finish")
        record = Record(index, tuple(arrivals), finish, failure)
        self._on_done(record)
        return record


def status_of(error: PacelineError) -> str:
    """Returns the gRPC status code's name, if possible from the cause: one exception covers several codes."""
    cause = error.__context__
    return cause.code().name if isinstance(cause, grpc.aio.AioRpcError) else code_of(error).name


class LiveProgress:
    def __init__(self, total: int | None) -> None:
        """`total`: requests, warm-ups included; None if only time ends the run."""
        console = Console(stderr=True)
        columns = (
            SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
            TextColumn("requests, {task.fields[tokens]} tokens[red]{task.fields[failed]}[/red]"), TimeElapsedColumn(),
        )  # fmt: skip
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("", total=total, tokens=0, failed="")
        self._tokens = 0
        self._failed = 0

    def __enter__(self) -> "LiveProgress":
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def show_load(self, label: str) -> None:
        self._progress.update(self._task, description=label)

    def count(self, record: Record) -> None:
        self._tokens += record.tokens
        self._failed += not record.is_ok
        failed = f", {self._failed} failed" if self._failed else ""
        self._progress.update(self._task, advance=1, tokens=self._tokens, failed=failed)
