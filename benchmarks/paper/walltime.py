"""Speed through the three services: drafters, temperatures and gammas in turns, one request at a time.

Both models read the prompts before timing. A request's time starts at its first token, which comes from the prompt's
own round with or without drafts.
"""

import asyncio
import random
from collections import defaultdict
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.deployment import embedded_pair
from benchmarks.modes import READING, READING_TOKENS
from benchmarks.paper.results import Setup
from paceline.client import AsyncClient, Completion
from paceline.prompts import PromptRecord, read_prompts
from paceline.results import TracedDraft
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive, Rule, SpeculationParams

# Two tasks: prompts of kinds whose answers quote their prompt, and of kinds whose answers do not.
TASKS = {
    "quoting": ("retrieved_context", "extraction", "summary", "code"),
    "free": ("writing", "question_answering", "reasoning", "maths"),
}
TEMPERATURES = (0, 1)
GAMMAS = (3, 5, 7)
PLAIN = "plain"
# What the coordinator has, with the names of `alpha.DRAFTERS`.
OF_SERVICES = {
    "draft model": Drafter.MODEL, "n-gram look-up": Drafter.NGRAM, "context copy": Drafter.SUFFIX,
}  # fmt: skip
TRACED_PROMPT = "Write a short poem about the first snow."
TRACED_TOKENS = 48


def tasks_of(path: str, count: int) -> dict[str, list[PromptRecord]]:
    """Returns `count` prompts for each task, alternating between its kinds. If the file has no such kind: any prompts."""
    records = read_prompts("--prompts", Path(path))
    found = {}
    for task, kinds in TASKS.items():
        by_kind: dict[str, list[PromptRecord]] = defaultdict(list)
        for record in records:
            if record.category in kinds:
                by_kind[record.category].append(record)
        rows = [kind[index] for index in range(count) for kind in by_kind.values() if index < len(kind)]
        found[task] = (rows or records)[:count]
    return found


def ways(drafters: dict[str, Drafter], temperature: int) -> dict[str, SpeculationParams]:
    """Returns settings by "DRAFTER, GAMMA", plain decoding included. Above temperature 0 a model's drafts are checked
    by `rejection`, as in the paper; a lookup's ids can only be matched, which gives the same distribution.
    """
    rule = Rule.REJECTION if temperature else None
    found = {PLAIN: SpeculationParams(enabled=False)}
    for name, drafter in drafters.items():
        for gamma in GAMMAS:
            found[f"{name}, {gamma}"] = SpeculationParams(
                drafter=drafter, num_speculative_tokens=gamma, rule=rule if drafter is Drafter.MODEL else None
            )
    return found


def figures_of(done: Completion) -> dict[str, float]:
    """Sums over a request's rounds after the prompt's. Times in milliseconds."""
    assert done.finish is not None, "a completion has an end"
    rounds = [trace for trace in done.traces if trace.round > 0]
    timing, drafted = done.finish.timing, [trace for trace in rounds if trace.proposed]
    return {
        "tokens": len(done.token_ids) - 1,
        "ms": timing.total_ms - timing.ttft_ms,
        "rounds": len(rounds),
        "drafted rounds": len(drafted),
        "proposed": sum(len(trace.proposed) for trace in drafted),
        "accepted": sum(trace.num_accepted for trace in drafted),
        "decided": sum(_is_decided(draft) for trace in drafted for draft in trace.proposed),
        "draft_ms": sum(trace.draft_us for trace in rounds) / 1e3,
        "target_ms": sum(trace.target_us for trace in rounds) / 1e3,
        "rpc_ms": sum(trace.rpc_us + trace.queued_us for trace in rounds) / 1e3,
    }


def _is_decided(draft: TracedDraft) -> bool:
    return draft.accepted or draft.p is not None or draft.target_id is not None


async def compare(
    client: AsyncClient, tasks: dict[str, list[PromptRecord]], drafters: dict[str, Drafter], tokens: int, seed: int
) -> list[dict[str, Any]]:
    """Returns a record for each task, temperature and mode, with figures per prompt."""
    order, found = random.Random(seed), []
    for task, records in tasks.items():
        for temperature in TEMPERATURES:
            sampling = SamplingParams(max_tokens=tokens, temperature=temperature, ignore_eos=True, seed=seed)
            modes = ways(drafters, temperature)
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in modes}
            for record in records:
                reading = replace(sampling, max_tokens=READING_TOKENS)
                await client.complete(record.prompt, reading, READING)
                for name in order.sample(list(modes), len(modes)):
                    taken[name].append(
                        figures_of(await client.complete(record.prompt, sampling, modes[name], trace=True))
                    )
            found += [
                {"task": task, "temperature": temperature, "way": name, "prompts": each} for name, each in taken.items()
            ]
            print(f"  {task}, temperature {temperature}: {len(records)} prompts, {len(modes)} ways", flush=True)
    return found


async def _measure(setup: Setup, draft: str, drafters: dict[str, Drafter], count: int, tokens: int) -> Any:
    tasks = tasks_of(setup.prompts, count)
    async with served(setup, draft) as (_, client):
        # First forward passes have extra costs, which are not measured.
        warm = SamplingParams(max_tokens=tokens, ignore_eos=True)
        for speculation in ways(drafters, 0).values():
            await client.complete("Say something.", warm, speculation)
        return await compare(client, tasks, drafters, tokens, setup.seed)


def served(setup: Setup, draft: str) -> Any:
    """Runs the services without recent responses, since every mode gets the same prompts."""
    target = {"model": setup.target, "quantization": setup.target_quantization}
    return embedded_pair(draft, remembers=False, target=target)


def measure_walltime(setup: Setup, count: int, tokens: int) -> Any:
    return asyncio.run(_measure(setup, setup.draft, OF_SERVICES, count, tokens))


def measure_walltime_int8(setup: Setup, count: int, tokens: int) -> Any:
    """Drafts with the target in int8."""
    return asyncio.run(_measure(setup, setup.target, {"target in int8": Drafter.MODEL}, count, tokens))


async def _traces(setup: Setup) -> dict[str, Any]:
    greedy = SamplingParams(max_tokens=TRACED_TOKENS, ignore_eos=True, seed=setup.seed)
    sampled = replace(greedy, temperature=1.0)
    model = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=7)
    asked = {
        "figure 1": (sampled, replace(model, rule=Rule.REJECTION)),
        "gamma 7": (greedy, model),
        "gamma 3": (greedy, replace(model, num_speculative_tokens=3)),
        "standard": (greedy, SpeculationParams(enabled=False)),
        "entropy": (sampled, replace(model, num_speculative_tokens=EntropyAdaptive(Bounds(1, 8)), rule=Rule.REJECTION)),
    }
    found = {}
    async with served(setup, setup.draft) as (_, client):
        for name, (sampling, speculation) in asked.items():
            # The first time warms what the second one measures.
            for _ in range(2):
                pieces = [chunk async for chunk in client.stream(TRACED_PROMPT, sampling, speculation, trace=True)]
            found[name] = [
                {**asdict(chunk.trace), "texts": [text for text, _ in chunk.parts], "origins": chunk.origins}
                for chunk in pieces
                if chunk.trace is not None
            ]
    return found


def measure_traces(setup: Setup) -> dict[str, Any]:
    """Returns rounds of one prompt: at temperature 1 (figure 1 and the entropy rule), and greedy (figure 5)."""
    return asyncio.run(_traces(setup))
