"""Adaptive k against every fixed k, on repetitive and on creative prompts, in one run.

python -m benchmarks.adaptive [--tokens 96] [--drafters model,ngram] [--longest 8] [--repeats 5]

Greedy, so that every variant gives the same tokens and only the time differs. Variants take turns on each prompt, in a
new order each time, so that disturbances affect all alike. A prompt's time is the median of its repeats. There are
eight prompts of each kind: with fewer, the best fixed k is the one whose rounds happen to end with the answers.
"""

import argparse
import asyncio
import random
import time
from collections import defaultdict
from statistics import median

from benchmarks.deployment import embedded_pair
from paceline.client import AsyncClient
from paceline.sampling import SamplingParams
from paceline.speculation import Bounds, Drafter, SpeculationParams

KINDS = {
    "repetitive": [
        "Repeat this line ten times: the quick brown fox jumps over the lazy dog.",
        "Write out the numbers from 1 to 40, each on its own line with the word apple behind it.",
        "Copy this text word for word, twice: A cache is a prefix of the context, and its length is all there is to know.",
        "Count down from 40 to 1, one number on each line.",
        "Write the alphabet four times, each letter followed by a comma.",
        "Say 'the train is late' twenty times, numbered.",
        "List the days of the week five times over, one day on each line.",
        "Write the multiplication table of 3 from 1 to 30, one line for each product.",
    ],
    "creative": [
        "Write a short story about a lighthouse keeper who finds a letter.",
        "Describe a city that floats above the clouds.",
        "Invent a new sport and explain why people love it.",
        "What would a conversation between the sea and the moon be like?",
        "Write a letter from a soldier of a war that nobody remembers.",
        "Describe a meal that changes the life of the person who eats it.",
        "Tell how a clockmaker's daughter learned to stop time, and why she never did it again.",
        "Write the opening of a novel set in a town where it always rains.",
    ],
}


async def measure(client: AsyncClient, drafter: str, tokens: int, longest: int, repeats: int) -> None:
    variants = {
        f"k = {k}": SpeculationParams(enabled=k > 0, drafter=Drafter(drafter), num_speculative_tokens=k)
        for k in range(longest + 1)
    }
    variants["adaptive"] = SpeculationParams(drafter=Drafter(drafter), num_speculative_tokens=Bounds(0, longest))
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    for prompts in KINDS.values():
        # Costs are learnt once in a coordinator's life: not part of what is measured.
        await client.complete(prompts[0], params, variants["adaptive"])
    order = random.Random(0)
    for kind, prompts in KINDS.items():
        runs_s: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in variants}
        for prompt in prompts * repeats:
            for name in order.sample(list(variants), len(variants)):
                started_s = time.perf_counter()
                await client.complete(prompt, params, variants[name])
                runs_s[name][prompt].append(time.perf_counter() - started_s)
        seconds = {name: sum(median(runs_s[name][prompt]) for prompt in prompts) for name in variants}
        best = min(seconds[name] for name in variants if name != "adaptive")
        speeds = ", ".join(f"{name}: {len(prompts) * tokens / s:.1f}" for name, s in sorted(seconds.items()))
        print(f"{drafter}, {kind}: {speeds} tokens/s")
        print(f"{drafter}, {kind}: adaptive is {best / seconds['adaptive']:.3f} of the best fixed k", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--drafters", default="model,ngram")
    parser.add_argument("--longest", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    for drafter in arguments.drafters.split(","):
        async with embedded_pair(remembers=False) as (_, client):
            await measure(client, drafter, arguments.tokens, arguments.longest, arguments.repeats)


if __name__ == "__main__":
    asyncio.run(main())
