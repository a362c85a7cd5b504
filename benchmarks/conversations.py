"""The gain of prefix caching: time to first token of a conversation's second turn, and acceptance.

python -m benchmarks.conversations [--count 4] [--prompt-tokens 2000] [--tokens 48]

Each conversation begins with its own text. Two deployments take turns, one without prefix caching; plain conversations
use the target's cache, speculative ones both caches.
"""

import argparse
import asyncio
import time
from dataclasses import dataclass, field

import numpy as np

from benchmarks.deployment import embedded_pair
from benchmarks.prompts import first_turns
from benchmarks.services import OWN_PROMPTS, PLAIN, SPECULATIVE
from paceline.client import AsyncClient, Completion, Prompt
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

# Characters per token of the project's prompts.
CHARACTERS_PER_TOKEN = 3.6


@dataclass(slots=True)
class Turns:
    first_ms: list[float] = field(default_factory=list)
    second_ms: list[float] = field(default_factory=list)
    cached_tokens: list[int] = field(default_factory=list)
    proposed: int = 0
    accepted: int = 0

    def count(self, completion: Completion) -> None:
        self.proposed += completion.finish.speculation.proposed
        self.accepted += completion.finish.speculation.accepted


async def timed_turn(
    client: AsyncClient, messages: Prompt, tokens: int, speculation: SpeculationParams
) -> tuple[Completion, float]:
    """Returns the answer, and milliseconds to its first token."""
    completion, first_ms = Completion(), 0.0
    started_s = time.perf_counter()
    async for chunk in client.stream(messages, SamplingParams(max_tokens=tokens, ignore_eos=True), speculation):
        first_ms = first_ms or (time.perf_counter() - started_s) * 1e3
        completion.add(chunk)
    return completion, first_ms


async def converse(client: AsyncClient, text: str, tokens: int, speculation: SpeculationParams, turns: Turns) -> None:
    messages = [{"role": "user", "content": text}]
    answer, first_ms = await timed_turn(client, messages, tokens, speculation)
    messages += [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "Say that again in one sentence."},
    ]
    again, second_ms = await timed_turn(client, messages, tokens, speculation)
    turns.first_ms.append(first_ms)
    turns.second_ms.append(second_ms)
    turns.cached_tokens.append(again.finish.cached_prompt_tokens)
    turns.count(answer)
    turns.count(again)


def report(name: str, turns: Turns) -> None:
    first, second = np.median(turns.first_ms), np.median(turns.second_ms)
    ratio = np.median(np.divide(turns.second_ms, turns.first_ms))
    acceptance = f"; accepted {turns.accepted} of {turns.proposed}" if turns.proposed else ""
    print(
        f"{name:22s} first turn {first:6.0f} ms, second {second:6.0f} ms ({ratio:.1%}), "
        f"{np.median(turns.cached_tokens):.0f} prompt tokens cached{acceptance}",
        flush=True,
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=4)
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--tokens", type=int, default=48)
    arguments = parser.parse_args()
    own = " ".join(first_turns(OWN_PROMPTS))
    length = int(arguments.prompt_tokens * CHARACTERS_PER_TOKEN)
    kinds = {"plain": PLAIN, "k = 4": SPECULATIVE}
    results = {(kind, cache): Turns() for kind in kinds for cache in ("cached", "uncached")}
    async with (
        embedded_pair(remembers=False) as (_, cached),
        embedded_pair(remembers=False, prefix_caching=False) as (_, uncached),
    ):
        for number in range(arguments.count):
            for place, (kind, speculation) in enumerate(kinds.items()):
                # Numbered first of all, so that no two texts begin alike.
                text = f"{number}{place}. " + own[number * 997 :][:length]
                for cache, client in (("cached", cached), ("uncached", uncached)):
                    await converse(client, text, arguments.tokens, speculation, results[kind, cache])
    for (kind, cache), turns in results.items():
        report(f"{kind}, {cache}", turns)


if __name__ == "__main__":
    asyncio.run(main())
