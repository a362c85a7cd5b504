"""Speculation modes against plain decoding, in turns, one request at a time or several at once.

python -m benchmarks.modes [--modes model:4,adaptive,hybrid:adaptive] [--at-once 8] [--prompts FILE --count 32] [--tokens 80]
                           [--temperature 0.7] [--rule rejection] [--target smollm2-135m] [--draft smollm2-135m] [--head FOLDER] [--unread]

Every group of prompts goes through all modes, in a new order each time. Both models read it once before, unmeasured;
with --unread, caches are not reused and every run reads its prompts; one at a time, the times after the first token are
compared too. Each mode has its own salt, so that it may draft from its answers to earlier prompts but never from another
mode's. If the prompts of each group have one kind, ratios by kind follow, lowest first.
"""

import argparse
import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.prompts import spread_prompts
from benchmarks.services import OWN_PROMPTS
from paceline.client import AsyncClient
from paceline.loadtest.workload import OFF, parse_variants
from paceline.prompts import PromptRecord
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams

# Asks the draft model too.
READING = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1)
# The prompt's round has no drafts, nor has the last token alone.
READING_TOKENS = 3


async def answer(
    client: AsyncClient, prompts: Sequence[str], sampling: SamplingParams, speculation: SpeculationParams, salt: str
) -> tuple[float, list[float]]:
    """Answers all at once. Returns the seconds in all, and each answer's seconds after its first token.

    With a new salt, no prompt or answer is known.
    """
    started_s = time.perf_counter()
    answers = await asyncio.gather(
        *(client.complete(prompt, sampling, speculation, cache_salt=salt) for prompt in prompts)
    )
    whole_s = time.perf_counter() - started_s
    timings = [each.finish.timing for each in answers if each.finish is not None]
    return whole_s, [(timing.total_ms - timing.ttft_ms) / 1e3 for timing in timings]


async def compare(
    client: AsyncClient,
    groups: Sequence[Sequence[str]],
    modes: dict[str, SpeculationParams],
    sampling: SamplingParams,
    reads: bool,
    kinds: Sequence[str],
) -> None:
    """`kinds`: the kind of each group's prompts."""
    order = random.Random(0)
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in modes}
    # Costs are learned once in a coordinator's life, and the first forward passes are slow: not part of what is measured.
    for name, speculation in modes.items():
        await answer(client, groups[0], sampling, speculation, f"{name}, warm-up")
    for group in groups:
        for name in order.sample(list(modes), len(modes)):
            if reads:
                # A draft head shares no prefix with requests that do not use it.
                for reading in (READING, modes[name]):
                    await answer(client, group, replace(sampling, max_tokens=READING_TOKENS), reading, name)
            whole_s, each_s = await answer(client, group, sampling, modes[name], name)
            taken[name].append((whole_s, each_s[0]))
    tokens = sampling.max_tokens * sum(map(len, groups))
    report({name: [whole for whole, _ in each] for name, each in taken.items()}, tokens, kinds)
    if not reads and max(map(len, groups)) == 1:
        print("\nafter the first token:")
        report({name: [decoding for _, decoding in each] for name, each in taken.items()}, tokens - len(groups), kinds)


def report(seconds: dict[str, list[float]], tokens: int, kinds: Sequence[str]) -> None:
    """seconds: of each group, by mode. tokens: of all groups."""
    plain = seconds.pop(OFF)
    print(f"{OFF}: {tokens / sum(plain):.1f} tokens/s")
    for name, taken in seconds.items():
        ratios = [before / after for before, after in zip(plain, taken, strict=True)]
        print(
            f"{name}: {tokens / sum(taken):.1f} tokens/s, {sum(plain) / sum(taken):.2f} x plain "
            f"(median of groups {median(ratios):.2f}, worst {min(ratios):.2f})",
            flush=True,
        )
        if len(set(kinds)) > 1:
            print(f"    {', '.join(f'{kind} {ratio:.2f}' for ratio, kind in by_kind(kinds, plain, taken))}", flush=True)


def by_kind(kinds: Sequence[str], plain: Sequence[float], taken: Sequence[float]) -> list[tuple[float, str]]:
    """Returns each kind's ratio of total times, lowest first."""
    totals: dict[str, list[float]] = {}
    for kind, before, after in zip(kinds, plain, taken, strict=True):
        total = totals.setdefault(kind, [0.0, 0.0])
        total[0] += before
        total[1] += after
    return sorted((before / after, kind) for kind, (before, after) in totals.items())


def kind_of(group: Sequence[PromptRecord]) -> str:
    kinds = {record.category for record in group}
    return kinds.pop() if len(kinds) == 1 else "several kinds"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="model:4,adaptive,hybrid:adaptive")
    parser.add_argument("--at-once", type=int, default=1)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--rule", type=Rule, help="match or rejection; without it each request's own")
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--head", default="auto", help="the target's draft head: a folder, none, or auto")
    parser.add_argument("--unread", action="store_true")
    arguments = parser.parse_args()
    records = spread_prompts(arguments.prompts, arguments.count)
    groups = [records[i : i + arguments.at_once] for i in range(0, len(records), arguments.at_once)]
    texts, kinds = [[record.text for record in group] for group in groups], list(map(kind_of, groups))
    variants = parse_variants(f"{OFF},{arguments.modes}")
    modes = {name: SpeculationParams(**fields, rule=arguments.rule) for name, fields in variants.items()}
    sampling = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, ignore_eos=True, seed=1)
    async with embedded_pair(
        arguments.draft,
        prefix_caching=not arguments.unread,
        target={"model": arguments.target, "draft_head": arguments.head},
    ) as (_, client):
        await compare(client, texts, modes, sampling, reads=not arguments.unread, kinds=kinds)


if __name__ == "__main__":
    asyncio.run(main())
