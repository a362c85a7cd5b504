"""Makes what the first run of a service would make: compiled kernels, and the embedded checkpoint's own files.

python -m tests.warm_up     (`make setup` runs it)

Kernels are compiled at their first call and kept beside their sources, one form for each type of weights and of cache. A tiny
model takes every way through them that the tests' services take.
"""

import asyncio
import tempfile
from pathlib import Path

import torch

from paceline.client import AsyncClient
from paceline.engine.models.weights import find_folder
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, DraftMode, Rule, SpeculationParams
from tests.hosted import Host

# Weights' dtype and quantisation, and the cache's dtype.
KINDS = (
    ("float32", "none", "auto"), ("bfloat16", "none", "auto"), ("float32", "int8", "auto"), ("bfloat16", "int8", "auto"),
    ("bfloat16", "int4", "auto"), ("float32", "none", "bfloat16"), ("float32", "none", "int8"), ("bfloat16", "none", "int8"),
)  # fmt: skip
REQUESTS = (
    SamplingParams(max_tokens=16, logprobs=2, prompt_logprobs=1),
    SamplingParams(max_tokens=16, repetition_penalty=1.2, logit_bias={3: 1.0}, banned_token_ids=(4,)),
    SamplingParams(max_tokens=16, temperature=0.8, seed=1),
    SamplingParams(max_tokens=16, temperature=0.8, seed=1, top_k=20, top_p=0.9, min_p=0.01),
)
WAYS = (
    SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.REJECTION),
    SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED),
    SpeculationParams(num_draft_tokens=4, drafter=Drafter.NGRAM),
)


async def generate(address: str, prompt: list[int]) -> None:
    async with AsyncClient(address) as client:
        for sampling in REQUESTS:
            await asyncio.gather(*(client.complete(prompt, sampling, way) for way in WAYS))


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="paceline-warm-up-") as folder:
        host = Host(Path(folder))
        try:
            for dtype in (torch.bfloat16, torch.float32):
                find_folder("smollm2-135m", dtype, print)
            # As a user starts them: with all threads, for which some kernels have forms of their own.
            default = ("--kv-cache-memory", "256MiB")
            for flags in (default, (*default, "--kv-cache-dtype", "int8")):
                asyncio.run(generate(host.start_trio(flags, flags).address, [1, 2, 3] * 200))
            for name, quantization, cache in KINDS:
                flags = ("--model", "dummy:tiny", "--dtype", name, "--quantization", quantization)
                flags = (*flags, "--kv-cache-dtype", cache, "--threads", "1", "--kv-cache-memory", "16MiB")
                asyncio.run(generate(host.start_trio(flags, flags).address, [1, 2, 3] * 10))
        finally:
            host.close()


if __name__ == "__main__":
    main()
