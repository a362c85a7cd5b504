"""Sends many messages at a service, several at once, beside a bystander."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase, settings

from tests.fuzz.services import FuzzedService, Seen
from tests.fuzz.watch import Bystander, LogWatch, faults_at_rest, tokens_alone
from tests.services import Trio

AT_ONCE = 16
# Cases that wait to be sent.
MOST_WAITING = 64
# Hypothesis remembers all examples of a run: after so many it begins anew.
CHUNK = 500


@dataclass(frozen=True, slots=True)
class Report:
    """Of one service."""

    name: str
    seen: Seen
    num_texts: int
    longest_gap_s: float
    wall_s: float
    # Each with the message that did it, where that is known.
    violations: list[str]

    def __str__(self) -> str:
        head = f"{self.name}: {self.seen.num_messages:,} messages in {self.wall_s:.0f} s"
        methods: dict[str, list[str]] = {}
        for (method, status), times in sorted(self.seen.statuses.items(), key=lambda each: (each[0][0], -each[1])):
            methods.setdefault(method, []).append(f"{status} {times:,}")
        lines = [f"  {method}: {', '.join(statuses)}" for method, statuses in methods.items()]
        beside = f"  beside: {self.num_texts:,} texts, longest gap {self.longest_gap_s * 1e3:.0f} ms"
        return "\n".join([head, *lines, beside, f"  violations: {len(self.violations)}", *self.violations[:5]])


def produce(service: FuzzedService, count: int, seed: int, take: Callable[[Any], None]) -> None:
    """Gives cases of at least `count` messages to `take`, always the same for a seed."""
    num_messages, num_chunks = 0, 0

    def count_and_take(case: Any) -> None:
        nonlocal num_messages
        if num_messages < count:
            num_messages += len(case)
            take(case)

    while num_messages < count:
        options = settings(
            max_examples=CHUNK, database=None, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
        )  # fmt: skip
        test = options(hypothesis.given(service.cases)(count_and_take))
        hypothesis.seed(seed * 1_000_003 + num_chunks)(test)()
        num_chunks += 1


async def attack(trio: Trio, service: FuzzedService, count: int, seed: int) -> Report:
    """`count` messages, or as many as come before the first violation."""
    alone = await tokens_alone(trio.address)
    logs = LogWatch({service.log for service in (trio.draft, trio.target, trio.coordinator)})
    bystander, started_s = Bystander(trio.address), time.monotonic()
    beside = asyncio.create_task(bystander.run(alone))
    waiting: asyncio.Queue[Any] = asyncio.Queue(MOST_WAITING)
    loop = asyncio.get_running_loop()

    def take(case: Any) -> None:
        if not service.seen.violations:
            asyncio.run_coroutine_threadsafe(waiting.put(case), loop).result()

    async def work() -> None:
        while (case := await waiting.get()) is not None:
            if not service.seen.violations:
                await _send(service, case)

    workers = [asyncio.create_task(work()) for _ in range(AT_ONCE)]
    # On a thread of its own: it is busy, and answers come meanwhile.
    await asyncio.to_thread(produce, service, count, seed, take)
    for _ in workers:
        await waiting.put(None)
    await asyncio.gather(*workers)
    wall_s = time.monotonic() - started_s
    bystander.end()
    violations = service.seen.violations + await _end(beside) + bystander.faults
    violations += await faults_at_rest(trio) + logs.alarms()
    return Report(service.name, service.seen, bystander.num_texts, bystander.longest_gap_s, wall_s, violations)


async def _send(service: FuzzedService, case: Any) -> None:
    try:
        await service.send(case)
    except Exception as error:
        # An answer that does not decode, say. The others must not wait for this worker.
        service.seen.violations.append(f"{error!r}\n  {case}")


async def _end(beside: asyncio.Task[None]) -> list[str]:
    try:
        await beside
    except Exception as error:
        return [f"the bystander ended: {error!r}"]
    return []
