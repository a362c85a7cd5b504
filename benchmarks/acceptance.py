"""How many drafts the target accepts, by kind of prompt and by position in the draft.

python -m benchmarks.acceptance [--prompts FILE.jsonl] [--count 60] [--tokens 80] [--k 4] [--temperature 0]
                                [--draft MODEL] [--json]

Runs eight prompts at once through the three services. A position counts if all earlier ones were accepted; `all` is
accepted / proposed.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from pathlib import Path

from benchmarks.deployment import DRAFT, embedded_pair
from benchmarks.prompts import spread_prompts
from benchmarks.services import OWN_PROMPTS
from paceline.client import Completion
from paceline.prompts import PromptRecord
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

AT_ONCE = 8


async def complete_all(prompts: list[PromptRecord], sampling: SamplingParams, k: int, draft: str) -> list[Completion]:
    async with embedded_pair(draft=draft) as (_, client):
        places = asyncio.Semaphore(AT_ONCE)

        async def one(prompt: PromptRecord) -> Completion:
            async with places:
                return await client.complete(
                    prompt.text, sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=k)
                )

        return list(await asyncio.gather(*map(one, prompts)))


def tabulate(prompts: list[PromptRecord], completions: list[Completion], k: int) -> dict[str, list[float]]:
    """Returns by category: accepted / proposed, tokens per round, and acceptance at each position, given the earlier
    ones.
    """
    groups: dict[str, list[Completion]] = defaultdict(list)
    for prompt, completion in zip(prompts, completions, strict=True):
        groups[prompt.category].append(completion)
        groups["overall"].append(completion)
    rows = {}
    for category, done in groups.items():
        finishes = [each.finish.speculation for each in done if each.finish is not None]
        accepted = [sum(each.accepted_per_position[at] for each in finishes) for at in range(k)]
        # Drafts after a rejected one are undecided.
        reached = [sum(each.proposed_per_position[0] for each in finishes), *accepted[:-1]]
        rounds = sum(each.rounds for each in finishes)
        rates = [a / n if n else 0.0 for a, n in zip(accepted, reached, strict=True)]
        proposed = sum(each.proposed for each in finishes)
        rows[category] = [sum(accepted) / proposed, 1 + sum(accepted) / rounds, *rates]
    rows["overall"] = rows.pop("overall")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=80)
    parser.add_argument("--k", type=int, default=4, help="tokens proposed in a round")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    prompts = spread_prompts(arguments.prompts, arguments.count)
    sampling = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, seed=1)
    completions = asyncio.run(complete_all(prompts, sampling, arguments.k, arguments.draft))
    rows = tabulate(prompts, completions, arguments.k)
    if arguments.json:
        print(json.dumps(rows))
        return
    print(f"{'':24s}  all    tokens/round  by position")
    for category, (everywhere, length, *rates) in rows.items():
        print(f"{category:24s}  {everywhere:.3f}  {length:12.2f}  {'  '.join(f'{rate:.3f}' for rate in rates)}")


if __name__ == "__main__":
    main()
