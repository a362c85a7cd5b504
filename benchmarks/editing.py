"""Files of this repository returned with one change each: speculation against plain decoding, in turns.

python -m benchmarks.editing [--modes hybrid:adaptive] [--count 20] [--tokens 256] [--target smollm2-135m] [--draft smollm2-135m-draft]

Decoding alone: times start at the first token. Each mode has its own salt, so that it drafts from no other's answers.
"""

import argparse
import asyncio
import random
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from paceline.client import AsyncClient, Completion
from paceline.loadtest.workload import OFF, parse_variants
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

ROOT = Path(__file__).parent.parent
TASKS = (
    ("coordinator/drafters/deadline.py", "Rename `deadline` to `time_limit` everywhere"),
    ("coordinator/drafters/ngram.py", "Add a docstring to every function that has none"),
    ("coordinator/beams/hypotheses.py", "Rename `hypotheses` to `candidates` everywhere"),
    ("coordinator/reports.py", "Make every dataclass mutable"),
    ("coordinator/unread.py", "Rename the first class to `Backlog`"),
    ("coordinator/generate_response.py", "Add type hints where they are missing"),
    ("draft_server/guessed_propose_job.py", "Rename `guesses` to `proposals` everywhere"),
    ("paceline/engine/batch.py", "Rename `wanted` to `needed` everywhere"),
    ("paceline/engine/cache/block_pool.py", "Raise ValueError instead of using assert"),
    ("paceline/engine/cache/prefix_index.py", "Rename `block` to `page` everywhere"),
    ("paceline/engine/forward_times.py", "Replace every constant's value by twice its value"),
    ("paceline/engine/models/model_config.py", "Rename `num_layers` to `depth` everywhere"),
    ("paceline/engine/sampling/logits_processors.py", "Remove all comments"),
    ("paceline/engine/scheduling/commands.py", "Rename the first class to `Order`"),
    ("paceline/engine/scheduling/preemption.py", "Rename `sequence` to `seq` everywhere"),
    ("paceline/engine/scheduling/job.py", "Remove all docstrings"),
    ("paceline/observability/exposition.py", "Add `from __future__ import annotations` as the first import"),
    ("paceline/observability/logs.py", "Use single quotes for strings"),
    ("paceline/rpc/health.py", "Rename `service` to `name` everywhere"),
    ("paceline/catalog/known_models.py", "Sort the entries by name"),
)
# Such that prompt and answer fit into a short context.
MOST_LINES = 90


@dataclass(slots=True)
class Totals:
    seconds: list[float] = field(default_factory=list)
    tokens: int = 0
    rounds: int = 0

    def add(self, completion: Completion) -> None:
        finish = completion.finish
        # The prompt's forward pass gives the first token.
        self.seconds.append((finish.timing.total_ms - finish.timing.ttft_ms) / 1000)
        self.tokens += finish.completion_tokens - 1
        self.rounds += finish.speculation.rounds


def prompt_of(path: str, change: str) -> str:
    lines = (ROOT / path).read_text().splitlines()[:MOST_LINES]
    text = "\n".join(lines)
    return f"{change} in this file, change nothing else, and return the whole file:\n\n```python\n{text}\n```"


async def compare(client: AsyncClient, prompts: list[str], modes: dict[str, SpeculationParams], tokens: int) -> None:
    sampling = SamplingParams(max_tokens=tokens, ignore_eos=True)
    totals = {name: Totals() for name in modes}
    order = random.Random(0)
    for name, speculation in modes.items():
        await client.complete(prompts[0], sampling, speculation, cache_salt=f"{name}, warm-up")
    for prompt in prompts:
        texts = set()
        for name in order.sample(list(modes), len(modes)):
            completion = await client.complete(prompt, sampling, modes[name], cache_salt=name)
            totals[name].add(completion)
            texts.add(completion.text)
        assert len(texts) == 1, f"texts differ: {texts}"
    tell(totals)


def tell(totals: dict[str, Totals]) -> None:
    plain = totals.pop(OFF)
    print(f"{OFF}: {plain.tokens / sum(plain.seconds):.1f} tokens/s")
    for name, own in totals.items():
        ratios = [before / after for before, after in zip(plain.seconds, own.seconds, strict=True)]
        print(
            f"{name}: {own.tokens / sum(own.seconds):.1f} tokens/s, {sum(plain.seconds) / sum(own.seconds):.2f} x plain "
            f"(median {median(ratios):.2f}, worst {min(ratios):.2f}), {own.tokens / own.rounds:.2f} tokens a round"
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modes", default="hybrid:adaptive")
    parser.add_argument("--count", type=int, default=len(TASKS))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    modes = {name: SpeculationParams(**fields) for name, fields in parse_variants(f"{OFF},{arguments.modes}").items()}
    prompts = [prompt_of(*task) for task in TASKS[: arguments.count]]
    async with embedded_pair(arguments.draft, remembers=False, target={"model": arguments.target}) as (_, client):
        await compare(client, prompts, modes, arguments.tokens)


if __name__ == "__main__":
    asyncio.run(main())
