"""Greedy answers with and without speculation: how many differ.

Target and draft are one small model, the draft in int8, so that many drafts are accepted and many are not.
"""

import asyncio

from benchmarks.gpu.deployment import PLAIN, deployed, speculation_of
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results
from paceline.client import Completion
from paceline.sampling_params import SamplingParams

TOKENS = 64
NUM_DRAFTS = 4
CUDA_GRAPH_MAX_TOKENS = 32


def measure(options: Options, results: Results) -> None:
    for name, batch_invariant in (("batch_invariant", True), ("as it is", False)):
        results.put(**{name: asyncio.run(compare(options, batch_invariant))})


async def compare(options: Options, batch_invariant: bool) -> dict[str, float]:
    sampling = SamplingParams(max_tokens=TOKENS, ignore_eos=True)
    prompts = [[5 + 3 * index, *range(10, 10 + index % 29)] for index in range(options.count)]
    servers = {
        "model": options.draft,
        **options.servers,
        "cuda_graph_max_tokens": CUDA_GRAPH_MAX_TOKENS,
        "batch_invariant": batch_invariant,
    }
    async with deployed(servers, {**servers, "quantization": "int8"}) as now:
        plain = [await now.client.complete(prompt, sampling, PLAIN) for prompt in prompts]
        speculative = await asyncio.gather(
            *(now.client.complete(prompt, sampling, speculation_of(NUM_DRAFTS)) for prompt in prompts)
        )
    differ = sum(one.token_ids != other.token_ids for one, other in zip(plain, speculative, strict=True))
    print(f"batch_invariant {batch_invariant}: {differ} of {len(prompts)} differ", flush=True)
    return {"differ": differ, "of": len(prompts), "acceptance_rate": acceptance_rate(speculative)}


def acceptance_rate(completions: list[Completion]) -> float:
    done = [each.finish.speculation for each in completions if each.finish is not None]
    return sum(each.accepted for each in done) / max(1, sum(each.proposed for each in done))
