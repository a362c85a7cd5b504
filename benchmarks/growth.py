"""Time per token by context and by number of clients.

python -m benchmarks.growth [--contexts 128,512,1024,2048,4096,8000] [--at-once 1,2,4,8,16,32,64] [--tokens 32]
                            [--png FILE]

Prompts are random tokens. Time per token: from a generation's first token to its last, divided by the tokens after the
first; the mean over clients.
"""

import argparse
import asyncio
import random
import time
from pathlib import Path

import numpy as np

from benchmarks.deployment import embedded_pair
from benchmarks.services import PLAIN, SPECULATIVE
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

VOCAB_SIZE = 49_152
SHORT_CONTEXT = 128
KINDS = {"plain": PLAIN, "k = 4": SPECULATIVE}
Curve = dict[int, float]


async def token_ms(client: AsyncClient, prompt: list[int], tokens: int, speculation: SpeculationParams) -> float:
    params = SamplingParams(max_tokens=tokens, ignore_eos=True)
    first_s, first_tokens, num_tokens = 0.0, 0, 0
    async for chunk in client.stream(prompt, params, speculation):
        num_tokens += len(chunk.token_ids)
        if not first_s:
            first_s, first_tokens = time.perf_counter(), num_tokens
    return (time.perf_counter() - first_s) * 1e3 / (num_tokens - first_tokens)


def make_prompt(source: random.Random, length: int) -> list[int]:
    return [source.randrange(VOCAB_SIZE) for _ in range(length)]


async def by_context(client: AsyncClient, contexts: list[int], tokens: int, source: random.Random) -> dict[str, Curve]:
    curves: dict[str, Curve] = {kind: {} for kind in KINDS}
    for context in contexts:
        prompt = make_prompt(source, context)
        for kind, speculation in KINDS.items():
            curves[kind][context] = await token_ms(client, prompt, tokens, speculation)
            print(f"context {context:5d}, {kind}: {curves[kind][context]:.1f} ms a token", flush=True)
    return curves


async def by_clients(client: AsyncClient, counts: list[int], tokens: int, source: random.Random) -> dict[str, Curve]:
    curves: dict[str, Curve] = {kind: {} for kind in KINDS}
    for count in counts:
        prompts = [make_prompt(source, SHORT_CONTEXT) for _ in range(count)]
        for kind, speculation in KINDS.items():
            each_ms = await asyncio.gather(*(token_ms(client, prompt, tokens, speculation) for prompt in prompts))
            curves[kind][count] = mean_ms = float(np.mean(each_ms))
            print(
                f"{count:3d} at once, {kind}: {mean_ms:.1f} ms a token each, {count * 1e3 / mean_ms:.0f} tokens/s in all",
                flush=True,
            )
    return curves


def write_png(path: Path, contexts: dict[str, Curve], clients: dict[str, Curve]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    for axes, curves, label in ((left, contexts, "tokens of context, one client"), (right, clients, "clients at once")):
        for kind, curve in curves.items():
            axes.plot(list(curve), list(curve.values()), marker="o", label=kind)
        axes.set(xlabel=label, ylabel="ms a token, each client", ylim=(0, None))
        axes.legend()
    figure.savefig(path, format="png", dpi=100)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--contexts", default="128,512,1024,2048,4096,8000")
    parser.add_argument("--at-once", default="1,2,4,8,16,32,64")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--png", type=Path)
    arguments = parser.parse_args()
    source = random.Random(0)
    async with embedded_pair(remembers=False) as (_, client):
        # The first request after a start touches memory that no other will.
        await token_ms(client, make_prompt(source, SHORT_CONTEXT), 8, SPECULATIVE)
        clients = await by_clients(client, [int(n) for n in arguments.at_once.split(",")], arguments.tokens, source)
        contexts = await by_context(client, [int(n) for n in arguments.contexts.split(",")], arguments.tokens, source)
    if arguments.png is not None:
        write_png(arguments.png, contexts, clients)


if __name__ == "__main__":
    asyncio.run(main())
