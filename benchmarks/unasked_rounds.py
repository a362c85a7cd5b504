"""What rounds without messages gain: a coordinator that lets the target go on by itself, and one that asks for every round.

python -m benchmarks.unasked_rounds [--prompts FILE.jsonl] [--at-once 1 8 32] [--tokens 96] [--turns 6] [--pair qwen2.5-coder]

Both use the same servers and take turns at each prompt, with and without speculation. One at a time, the speed is that after
the first token.
"""

import argparse
import asyncio
import contextlib
import sys
import tempfile
import time
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path
from statistics import median

from benchmarks.colocated_draft import OWN_PROMPTS
from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.prompts import spread_prompts
from benchmarks.services import PLAIN, SPECULATIVE
from paceline.catalog.known_models import PAIRS
from paceline.client import AsyncClient, Completion
from paceline.errors import PacelineError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

ASKS_FOR_ALL = (
    "import coordinator.policy.policy as policy; policy.MOST_ROUNDS = 0; from coordinator.__main__ import main; main()"
)


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


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--pair", choices=sorted(PAIRS))
    arguments = parser.parse_args()
    target, draft = PAIRS[arguments.pair] if arguments.pair else (MODEL, DRAFT)
    pair = embedded_pair(draft, remembers=False, target={"model": target})
    async with pair as (services, client), contextlib.AsyncExitStack() as stack:
        asking = asking_coordinator(services.addresses["target"], services.addresses["draft"])
        clients = {"asks": await stack.enter_async_context(asking), "goes on": client}
        for num_at_once in arguments.at_once:
            prompts = [each.text for each in spread_prompts(arguments.prompts, num_at_once * arguments.turns)]
            for name, speculation in (("plain", PLAIN), ("default", SPECULATIVE)):
                speeds: dict[str, list[float]] = {each: [] for each in clients}
                num_different = 0
                for turn in range(arguments.turns):
                    some = [prompts[(turn * num_at_once + each) % len(prompts)] for each in range(num_at_once)]
                    sampling = SamplingParams(
                        max_tokens=arguments.tokens, temperature=0.7 * (turn % 2), seed=turn, ignore_eos=True
                    )
                    found = []
                    for way in sorted(clients, reverse=bool(turn % 2)):
                        speed, completions = await decode(clients[way], some, sampling, speculation)
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


if __name__ == "__main__":
    asyncio.run(main())
