"""Three targets and two drafts: some of them are killed, and no text changes.

python -m benchmarks.pools [--streams 8] [--tokens 200] [--kills 2] [--target M] [--draft M]

Compares the texts with those of an undisturbed run, and prints the longest gap of either. Exits with 1 if a text differs.
"""

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
from contextlib import suppress
from itertools import cycle

from benchmarks.deployment import DRAFT, MODEL
from paceline.cli.services import Services
from paceline.cli.stack import make_stack
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams

PROMPTS = (
    "Why is the sky blue?",
    "Write a story about a lighthouse.",
    "How do tides work?",
    "List ten rivers and their lengths.",
)
# Killed in this order, again and again; each is started again by itself.
VICTIMS = ("target", "draft", "target-2", "draft-2", "target-3")


class Run:
    def __init__(self, client: AsyncClient, num_streams: int, num_tokens: int) -> None:
        self._client, self._num_streams, self._num_tokens = client, num_streams, num_tokens
        self.longest_gap_s = 0.0

    async def texts(self) -> list[list[int]]:
        """Returns the tokens of all streams. Half of them are greedy, the others have a seed each."""
        return await asyncio.gather(*(self._stream(number) for number in range(self._num_streams)))

    async def _stream(self, number: int) -> list[int]:
        sampling = SamplingParams(
            max_tokens=self._num_tokens, ignore_eos=True, temperature=0.8 * (number % 2), seed=number
        )
        tokens: list[int] = []
        last_s = None
        async for chunk in self._client.stream(PROMPTS[number % len(PROMPTS)], sampling):
            now_s = time.perf_counter()
            # The first waits for the prompt.
            if last_s is not None:
                self.longest_gap_s = max(self.longest_gap_s, now_s - last_s)
            last_s = now_s
            tokens += chunk.token_ids
        return tokens


async def kill(services: Services, num_kills: int, undisturbed_s: float) -> None:
    """Kills servers at equal intervals of the undisturbed run's time."""
    for name, _ in zip(cycle(VICTIMS), range(num_kills), strict=False):
        await asyncio.sleep(undisturbed_s / (num_kills + 1))
        with suppress(ProcessLookupError):
            os.kill(services.pids[name], signal.SIGKILL)
            print(f"killed {name}", flush=True)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-pools-") as folder:
        coordinator = {"listen": f"unix:{folder}/coordinator.sock", "suffix_cache_tokens": 0}
        stack = make_stack(
            {"model": arguments.target}, {"model": arguments.draft}, coordinator, num_targets=3, num_drafts=2
        )
        async with Services(stack, lambda name, line: None) as services, AsyncClient(services.address) as client:
            watching = asyncio.create_task(services.watch())
            # All endpoints have read each prompt once, and costs are known.
            await Run(client, 3 * arguments.streams, 20).texts()
            undisturbed, disturbed = (Run(client, arguments.streams, arguments.tokens) for _ in range(2))
            started_s = time.perf_counter()
            expected = await undisturbed.texts()
            seconds = time.perf_counter() - started_s
            killing = asyncio.create_task(kill(services, arguments.kills, seconds))
            found = await disturbed.texts()
            await killing
            watching.cancel()
    num_wrong = sum(one != other for one, other in zip(expected, found, strict=True))
    print(f"{len(found)} texts of {arguments.tokens} tokens, {num_wrong} differ from the undisturbed run's")
    for name, run in (("undisturbed", undisturbed), ("with servers killed", disturbed)):
        print(f"longest gap in a stream, {name}: {run.longest_gap_s * 1000:.0f} ms")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
