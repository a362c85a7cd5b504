"""The quality of quantized weights and activations: perplexity against transformers' float32 on the same weights.

python -m benchmarks.perplexity --tokens-file FILE.jsonl.gz [--count 20000] [--length 512] [--model smollm2-135m]
                                [--quantization auto] [--greedy 0]

FILE has lines of JSON, each [prompt_length, token_ids]. The target server reports the prompt's log-probabilities;
transformers runs the weights as float32. `--greedy N` also counts how many of N answers of 64 tokens differ from
bfloat16's.
"""

import argparse
import asyncio
import gzip
import json
import math
from pathlib import Path

import torch

from benchmarks.deployment import MODEL, embedded_pair
from benchmarks.reference import load_reference
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

ANSWER_TOKENS = 64
PLAIN = SpeculationParams(enabled=False)


def read_sequences(file: Path, count: int, length: int) -> list[list[int]]:
    """Returns the first `length` tokens of each line, until there are `count` tokens."""
    sequences: list[list[int]] = []
    with gzip.open(file, "rt") as lines:
        for line in lines:
            sequences.append(json.loads(line)[1][:length])
            if sum(map(len, sequences)) >= count:
                break
    return sequences


async def score(model: str, quantization: str, sequences: list[list[int]]) -> float:
    """Returns our target's mean negative log-likelihood per token."""
    total = 0.0
    async with embedded_pair("none", target={"model": model, "quantization": quantization}) as (_, client):
        for token_ids in sequences:
            done = await client.complete(token_ids, SamplingParams(max_tokens=1, prompt_logprobs=1), PLAIN)
            total -= sum(each.logprob for each in done.prompt_logprobs)
    return total / sum(len(each) - 1 for each in sequences)


async def answers(model: str, quantization: str, prompts: list[list[int]]) -> list[list[int]]:
    async with embedded_pair("none", target={"model": model, "quantization": quantization}) as (_, client):
        sampling = SamplingParams(max_tokens=ANSWER_TOKENS)
        return [(await client.complete(prompt, sampling, PLAIN)).token_ids for prompt in prompts]


@torch.inference_mode()
def score_reference(model: str, sequences: list[list[int]]) -> float:
    reference, total = load_reference(model, torch.float32), 0.0
    for token_ids in sequences:
        ids = torch.tensor([token_ids])
        logprobs = reference(ids).logits[0, :-1].log_softmax(-1)
        total -= float(logprobs.gather(1, ids[0, 1:, None]).sum())
    return total / sum(len(each) - 1 for each in sequences)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens-file", type=Path, required=True)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--quantization", default="auto")
    parser.add_argument("--greedy", type=int, default=0)
    arguments = parser.parse_args()
    sequences = read_sequences(arguments.tokens_file, arguments.count, arguments.length)
    print(f"{sum(map(len, sequences))} tokens in {len(sequences)} sequences", flush=True)
    ours = asyncio.run(score(arguments.model, arguments.quantization, sequences))
    print(f"{arguments.quantization:12s} perplexity {math.exp(ours):.4f}", flush=True)
    reference = score_reference(arguments.model, sequences)
    print(f"{'float32':12s} perplexity {math.exp(reference):.4f}  ratio {math.exp(ours - reference):.5f}", flush=True)
    if arguments.greedy:
        prompts = [each[:64] for each in sequences[: arguments.greedy]]
        one, other = (asyncio.run(answers(arguments.model, kind, prompts)) for kind in (arguments.quantization, "none"))
        differing = sum(first != second for first, second in zip(one, other, strict=True))
        print(f"greedy answers that differ from bfloat16 weights: {differing} of {len(prompts)}")


if __name__ == "__main__":
    main()
