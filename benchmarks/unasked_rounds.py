"""What rounds without messages gain: a coordinator that lets the target go on by itself, and one that asks for every round.

python -m benchmarks.unasked_rounds [--prompts FILE.jsonl] [--at-once 1 8 32] [--tokens 96] [--turns 6] [--pair qwen2.5-coder]

Both use the same servers and take turns at each prompt, with and without speculation; prompts are read before. One at a time, the
speed is that after the first token. Then: what the target computes beyond stop strings, and how long commands wait beside
sequences that go on.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.request import urlopen

from benchmarks.colocated_draft import OWN_PROMPTS
from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.gateway import free_port
from benchmarks.prompts import spread_prompts
from benchmarks.services import PLAIN, SPECULATIVE
from paceline.catalog.known_models import PAIRS
from paceline.client import AsyncClient, Completion
from paceline.errors import PacelineError
from paceline.results import Finish
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

ASKS_FOR_ALL = (
    "import coordinator.policy.policy as policy; policy.MOST_ROUNDS = 0; from coordinator.__main__ import main; main()"
)
# Parts of a text before its stop strings.
STOPS_AT = (0.25, 0.5, 0.75)


def num_fed_for(finish: Finish) -> int:
    """Returns how many tokens the target has fed for an answer: what it read of the prompt, and each round's token and drafts."""
    num_read = finish.prompt_tokens - finish.cached_prompt_tokens
    return num_read + finish.speculation.rounds + finish.speculation.proposed


@contextlib.asynccontextmanager
async def asking_coordinator(target: str, draft: str) -> AsyncIterator[AsyncClient]:
    """Runs a coordinator that asks for every round."""
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        address = f"unix:{folder}/coordinator.sock"
        flags = ("--listen", address, "--target", target, "--draft", draft, "--suffix-cache-tokens", "0")
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", ASKS_FOR_ALL, *flags, stderr=DEVNULL)
        try:
            async with AsyncClient(address) as client:
                while True:
                    with contextlib.suppress(PacelineError):
                        await client.describe()
                        break
                    await asyncio.sleep(0.2)
                yield client
        finally:
            process.terminate()
            await process.wait()


async def decode(
    client: AsyncClient, prompts: list[str], sampling: SamplingParams, speculation: SpeculationParams
) -> tuple[float, list[Completion]]:
    """Returns tokens a second, and the completions."""
    started_s = time.perf_counter()
    completions = await asyncio.gather(*(client.complete(each, sampling, speculation) for each in prompts))
    seconds = time.perf_counter() - started_s
    if len(prompts) == 1:
        timing = completions[0].finish.timing
        seconds = (timing.total_ms - timing.ttft_ms) / 1e3
    return sum(len(each.token_ids) for each in completions) / seconds, completions


class Comparison:
    """Two clients of the same servers, by what their coordinators do."""

    def __init__(self, clients: dict[str, AsyncClient], metrics: str, prompts: list[str], tokens: int) -> None:
        """`metrics`: where the target serves them."""
        self._clients, self._metrics, self._prompts, self._tokens = clients, metrics, prompts, tokens

    async def compare_speeds(self, num_at_once: int, name: str, speculation: SpeculationParams, turns: int) -> None:
        speeds: dict[str, list[float]] = {each: [] for each in self._clients}
        num_different = 0
        for turn in range(turns):
            some = [self._prompts[(turn * num_at_once + each) % len(self._prompts)] for each in range(num_at_once)]
            sampling = SamplingParams(max_tokens=self._tokens, temperature=0.7 * (turn % 2), seed=turn, ignore_eos=True)
            found = []
            await decode(self._clients["asks"], some, replace(sampling, max_tokens=2), speculation)
            for way in sorted(self._clients, reverse=bool(turn % 2)):
                speed, completions = await decode(self._clients[way], some, sampling, speculation)
                speeds[way].append(speed)
                found.append([each.token_ids for each in completions])
            num_different += sum(one != other for one, other in zip(*found, strict=True))
        ratios = [gone / asked for gone, asked in zip(speeds["goes on"], speeds["asks"], strict=True)]
        listed = ", ".join(f"{way} {median(each):.1f}" for way, each in speeds.items())
        print(
            f"{num_at_once} at once, {name}: tokens/s {listed}; {median(ratios):.3f} x "
            f"({min(ratios):.2f} to {max(ratios):.2f}); {num_different} answers differ",
            flush=True,
        )

    async def count_thrown_away(self, name: str, speculation: SpeculationParams, turns: int) -> None:
        """Prints what the target feeds behind stop strings, in rounds that no answer has."""
        sampling = SamplingParams(max_tokens=self._tokens)
        thrown_away: dict[str, list[int]] = {each: [] for each in self._clients}
        for prompt in self._prompts[:turns]:
            text = (await self._clients["asks"].complete(prompt, sampling, PLAIN)).text
            for stop in filter(None, (text[int(len(text) * share) :][:4] for share in STOPS_AT)):
                for way, client in self._clients.items():
                    before = await asyncio.to_thread(self._num_fed)
                    answer = await client.complete(prompt, replace(sampling, stop=(stop,)), speculation)
                    # What it still computes is counted when it is over.
                    await asyncio.sleep(0.5)
                    num_fed = await asyncio.to_thread(self._num_fed) - before
                    thrown_away[way].append(num_fed - num_fed_for(answer.finish))
        listed = ", ".join(
            f"{way} {sum(each) / len(each):.2f}, at most {max(each)}" for way, each in thrown_away.items()
        )
        num_texts = len(thrown_away["asks"])
        print(f"tokens thrown away at stop strings, {name}, {num_texts} answers: {listed}", flush=True)

    async def measure_waits(self, num_others: int, turns: int) -> None:
        """Prints how long a newcomer's single command waits while others decode."""
        for way, client in self._clients.items():
            sampling = SamplingParams(max_tokens=40 * turns, ignore_eos=True)
            others = [
                asyncio.ensure_future(client.complete(each, sampling, PLAIN)) for each in self._prompts[:num_others]
            ]
            waits_ms = []
            for turn in range(4 * turns):
                await asyncio.sleep(0.1)
                if all(each.done() for each in others):
                    break
                newcomer = await client.complete(f"Number {turn}:", SamplingParams(max_tokens=1), PLAIN)
                assert newcomer.finish is not None
                waits_ms.append(newcomer.finish.timing.queued_ms)
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            print(
                f"a command beside {num_others} others, {way}: waits {median(waits_ms):.1f} ms, at most {max(waits_ms):.1f}",
                flush=True,
            )

    def _num_fed(self) -> int:
        """Returns the tokens that the target has fed so far."""
        with urlopen(f"http://{self._metrics}/metrics") as response:
            line = next(
                each
                for each in response.read().decode().splitlines()
                if each.startswith("paceline_engine_step_tokens_sum")
            )
        return int(float(line.split()[-1]))


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pair", choices=sorted(PAIRS))
    arguments = parser.parse_args()
    target, draft = PAIRS[arguments.pair] if arguments.pair else (MODEL, DRAFT)
    metrics, turns = f"127.0.0.1:{free_port()}", arguments.turns
    pair = embedded_pair(draft, remembers=False, target={"model": target, "metrics": metrics})
    async with pair as (services, client), contextlib.AsyncExitStack() as stack:
        asking = asking_coordinator(services.addresses["target"], services.addresses["draft"])
        clients = {"asks": await stack.enter_async_context(asking), "goes on": client}
        prompts = [each.text for each in spread_prompts(arguments.prompts, max(arguments.at_once) * turns)]
        comparison = Comparison(clients, metrics, prompts, arguments.tokens)
        for num_at_once in arguments.at_once:
            for name, speculation in (("plain", PLAIN), ("default", SPECULATIVE)):
                await comparison.compare_speeds(num_at_once, name, speculation, turns)
        for name, speculation in (("plain", PLAIN), ("default", SPECULATIVE)):
            await comparison.count_thrown_away(name, speculation, turns)
        await comparison.measure_waits(max(arguments.at_once), turns)


if __name__ == "__main__":
    asyncio.run(main())
