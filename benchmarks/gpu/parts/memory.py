"""GPU memory of both servers against the sum of their budgets, under the most expensive requests.

The caches have a fixed size, since a cache that takes the rest would hide a wrong budget. Two CUDA contexts of some
hundred MiB each are in no budget.
"""

import asyncio

import torch

from benchmarks.gpu.deployment import answer, deployed, prompts_of, speculation_of
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results
from paceline.sampling_params import SamplingParams

CACHE = {"kv_cache_memory": "4GiB", "cuda_graph_max_tokens": 64}
# Prompts whose log-probabilities are asked for at once.
NUM_SCORED = 4


def measure(options: Options, results: Results) -> None:
    asyncio.run(compare(options, results))


async def compare(options: Options, results: Results) -> None:
    before, _ = torch.cuda.mem_get_info()
    target = {"model": options.target, **options.servers, **CACHE}
    draft = {"model": options.draft, **options.servers, **CACHE}
    async with deployed(target, draft) as now:
        budget = sum(now.budgets_mib.values())
        results.put(budgets_mib=now.budgets_mib, idle_mib=mib_since(before))
        await answer(now.client, options, 8, speculation_of(4))
        results.put(after_drafts_mib=mib_since(before))
        scored = SamplingParams(max_tokens=4, logprobs=5, prompt_logprobs=5, ignore_eos=True)
        await asyncio.gather(*(now.client.complete(prompt, scored) for prompt in prompts_of(options, NUM_SCORED)))
        used = mib_since(before)
        results.put(after_logprobs_mib=used, of_budget=used / budget)
    print(f"memory: {used:,.0f} MiB in use, {budget:,.0f} MiB in the budgets ({used / budget:.3f})")


def mib_since(before: int) -> float:
    free, _ = torch.cuda.mem_get_info()
    return (before - free) / 2**20
