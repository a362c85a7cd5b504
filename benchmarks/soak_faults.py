"""Twenty minutes of faults under load: no wrong or lost token, and no growth.

python -m benchmarks.soak_faults [--minutes 20] [--clients 8] [--seed 0]

Clients use gRPC and HTTP, half greedily and half with seeds, with several drafters, and abandon one answer in five.
Draft, target, coordinator and gateway are killed (SIGKILL), terminated (SIGTERM) and restarted, or stopped for a few
seconds. Each answer is compared with that of the same prompt and seed without speculation and faults; so is the part of
an answer that broke off, which is then requested again. Tiny models. Exits with 1 if a token is wrong, a block is not
freed, or a process exits by itself.
"""

import argparse
import asyncio
import contextlib
import math
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from benchmarks.memory import resident_mib
from paceline.errors import PacelineError, Unavailable
from tests.faults.deployment import Clients, Deployment, deployed
from tests.faults.faults import Fault, Kill, Scene, Stop, Terminate
from tests.faults.loads import Asked, Follower, GrpcFollower, HttpFollower, Undisturbed

PLACES = ("draft", "target", "coordinator", "gateway")
# Of which each client asks for one at a time: short and long prompts.
POOL = [Asked(number, 6 if number % 3 else 200, 120) for number in range(48)]
CANCELLED_SHARE = 0.2
LONGEST_STOP_S, LONGEST_REST_S = 6.0, 3.0
PAUSE_S = 0.1
SAMPLE_EVERY_S = 2.0


@dataclass(slots=True)
class Tally:
    whole: int = 0
    left: int = 0
    # Answers that broke off, and requests that nobody took: both were made again.
    broken: int = 0
    refused: int = 0
    tokens: int = 0
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    # MiB by service.
    memory: list[dict[str, float]] = field(default_factory=list)

    def count_failed(self, words: list[str]) -> None:
        self.broken += bool(words)
        self.refused += not words

    def compare(self, follower: Follower, expected: list[str], is_whole: bool) -> None:
        words = follower.words
        self.tokens += len(words)
        if words != (expected if is_whole else expected[: len(words)]):
            self.wrong.append(f"generation {follower.asked.number}: {len(words)} tokens, {words[:8]} …")


async def ask(follower: Follower, leaves_after: int | None) -> bool:
    """Returns whether the answer was complete. `leaves_after`: tokens after which the client leaves. Raises
    Unavailable.
    """
    running = asyncio.create_task(follower.run())
    while leaves_after is not None and not running.done() and len(follower.words) < leaves_after:
        await asyncio.sleep(0.005)
    if leaves_after is not None and not running.done():
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return False
    await running
    return True


@dataclass(slots=True)
class SoakClient:
    clients: Clients
    undisturbed: Undisturbed
    tally: Tally
    seed: int

    async def work(self, until_s: float) -> None:
        chance = random.Random(self.seed)
        while time.monotonic() < until_s:
            asked = chance.choice(POOL)
            leaves_after = chance.randrange(asked.max_tokens) if chance.random() < CANCELLED_SHARE else None
            salt = f"client {self.seed}" if chance.random() < 0.5 else ""
            while not await self._ask(asked, salt, leaves_after):
                await asyncio.sleep(PAUSE_S)

    async def _ask(self, asked: Asked, salt: str, leaves_after: int | None) -> bool:
        """Returns whether the answer is complete; otherwise the client asks again."""
        follower: Follower = GrpcFollower(self.clients.grpc, asked, salt)
        if self.seed % 2:
            follower = HttpFollower(self.clients.http, asked, salt)
        tally, expected = self.tally, self.undisturbed.of(asked)
        try:
            is_whole = await ask(follower, leaves_after)
        except Unavailable:
            tally.count_failed(follower.words)
            tally.compare(follower, expected, is_whole=False)
            return False
        except (AssertionError, PacelineError, httpx2.HTTPError) as error:
            tally.wrong.append(f"generation {asked.number}: {type(error).__name__}: {error}")
            return True
        for words in follower.broken if isinstance(follower, HttpFollower) else ():
            tally.count_failed(words)
        tally.compare(follower, expected, is_whole)
        tally.whole += is_whole
        tally.left += not is_whole
        return True


async def disturb(deployment: Deployment, clients: Clients, tally: Tally, seed: int, until_s: float) -> None:
    """Injects one fault after the other, each repaired before the next."""
    chance = random.Random(seed)
    while time.monotonic() < until_s:
        fault: Fault = chance.choice([Kill(), Terminate(), Stop(chance.uniform(0.5, LONGEST_STOP_S))])
        scene = Scene(deployment, clients.impatient, chance.choice(PLACES))
        tally.faults[f"{type(fault).__name__.lower()} {scene.place}"] += 1
        fault.strike(scene)
        await fault.mend(scene)
        await asyncio.sleep(chance.uniform(0.2, LONGEST_REST_S))


async def watch_memory(deployment: Deployment, samples: list[dict[str, float]]) -> None:
    while True:
        sizes = {}
        for name, service in deployment.services.items():
            # One that has just died has no memory.
            with contextlib.suppress(OSError, ValueError):
                sizes[name] = resident_mib(service.process.pid)
        samples.append(sizes)
        await asyncio.sleep(SAMPLE_EVERY_S)


def report(tally: Tally, minutes: float) -> None:
    print(
        f"{minutes:.1f} minutes, {sum(tally.faults.values())} faults, {len(tally.wrong)} wrong answers {tally.wrong[:3]}"
    )
    print(
        f"{tally.whole} answers were whole, {tally.left} left by their clients, {tally.broken} broke off and {tally.refused} "
        f"requests found nobody, and were made again; {tally.tokens} tokens compared"
    )
    for name, count in sorted(tally.faults.items()):
        print(f"  {name:22s} {count:3d}")
    third = math.ceil(len(tally.memory) / 3)
    for name in (*PLACES, "impatient"):
        parts = [tally.memory[at : at + third] for at in range(0, len(tally.memory), third)]
        sizes = [max((sample.get(name, 0.0) for sample in part), default=0.0) for part in parts]
        print(f"  resident at most, {name:12s} {', '.join(f'{size:.0f}' for size in sizes)} MiB in each third")


async def run(minutes: float, num_clients: int, seed: int) -> int:
    """Returns the exit status."""
    tally, undisturbed, status = Tally(), Undisturbed(), 0
    with tempfile.TemporaryDirectory(prefix="paceline-soak-") as folder:
        async with deployed(Path(folder)) as (deployment, clients):
            await undisturbed.find(clients.grpc, POOL)
            # A gateway waits for coordinators that it has seen.
            await HttpFollower(clients.http, POOL[0], "").run()
            watcher = asyncio.create_task(watch_memory(deployment, tally.memory))
            started_s = time.monotonic()
            until_s = started_s + 60 * minutes
            those = [SoakClient(clients, undisturbed, tally, seed + number) for number in range(num_clients)]
            await asyncio.gather(
                disturb(deployment, clients, tally, seed, until_s), *(one.work(until_s) for one in those)
            )
            watcher.cancel()
            try:
                await deployment.until_idle()
            except AssertionError as error:
                print(error)
                status = 1
            report(tally, (time.monotonic() - started_s) / 60)
    return status or int(bool(tally.wrong))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sys.exit(asyncio.run(run(arguments.minutes, arguments.clients, arguments.seed)))


if __name__ == "__main__":
    main()
