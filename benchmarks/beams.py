"""Beam search against transformers' token by token, and plain beams against drafted ones in tokens/s.

python -m benchmarks.beams [--count 40] [--widths 2,4,8] [--tokens 48] [--prompts FILE]
python -m benchmarks.beams --speed [--count 8] [--widths 4] [--tokens 48] [--lengths 1,2,4] [--draft MODEL]

The first compares with `generate(num_beams=N, do_sample=False)` on the same weights in float32; the same model drafts.
The second times the default pair, one request at a time, plain and drafted in turns.
"""

import argparse
import asyncio
import time
from pathlib import Path

import torch

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.prompts import spread_prompts
from benchmarks.reference import load_reference
from benchmarks.services import OWN_PROMPTS
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams, parse_draft_length

PLAIN = SpeculationParams(enabled=False)


def drafted(length: str) -> SpeculationParams:
    return SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=parse_draft_length(length))


@torch.inference_mode()
def expected(model: object, prompt: list[int], sampling: SamplingParams) -> list[int]:
    """Returns transformers' best hypothesis."""
    out = model.generate(  # type: ignore[attr-defined]
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=sampling.beams,
        do_sample=False, max_new_tokens=sampling.max_tokens,
    )  # fmt: skip
    return list(out[0, len(prompt) :].tolist())


async def compare(prompts: list[str], widths: list[int], num_tokens: int) -> None:
    model = load_reference(dtype=torch.float32)
    async with embedded_pair(MODEL, dtype="float32", quantization="none") as (_, client):
        for width in widths:
            sampling = SamplingParams(max_tokens=num_tokens, beams=width)
            same = same_drafted = 0
            for text in prompts:
                prompt = await client.tokenize(text)
                reference = await asyncio.to_thread(expected, model, prompt, sampling)
                plain = (await client.complete(prompt, sampling, PLAIN)).token_ids
                speculative = (await client.complete(prompt, sampling, drafted("4"))).token_ids
                same += plain == reference
                same_drafted += speculative == plain
                if plain != reference:
                    print(f"    N = {width}: another answer to {text[:60]!r}", flush=True)
            print(f"N = {width}: {same} of {len(prompts)} as transformers, {same_drafted} drafted as plain", flush=True)


async def time_modes(client: AsyncClient, prompts: list[str], sampling: SamplingParams, lengths: list[str]) -> None:
    modes = {"plain": PLAIN, **{length: drafted(length) for length in lengths}}
    seconds, tokens = dict.fromkeys(modes, 0.0), dict.fromkeys(modes, 0)
    steps = dict.fromkeys(modes, 0.0)
    for name, speculation in modes.items():
        await client.complete(prompts[0], sampling, speculation, cache_salt=name)
    for text in prompts:
        for name, speculation in modes.items():
            started_s = time.perf_counter()
            done = await client.complete(text, sampling, speculation, cache_salt=name)
            seconds[name] += time.perf_counter() - started_s
            tokens[name] += len(done.token_ids)
            assert done.finish is not None
            steps[name] += done.finish.speculation.mean_acceptance_length
    for name in modes:
        rate = tokens[name] / seconds[name]
        ratio = rate * seconds["plain"] / tokens["plain"]
        print(
            f"N = {sampling.beams}, {name}: {rate:.1f} tokens/s, {ratio:.2f} x plain, "
            f"{steps[name] / len(prompts):.2f} steps a round",
            flush=True,
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--count", type=int)
    parser.add_argument("--widths", default="")
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--lengths", default="1,2,4")
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    arguments = parser.parse_args()
    count = arguments.count or (8 if arguments.speed else 40)
    widths = [int(width) for width in (arguments.widths or ("4" if arguments.speed else "2,4,8")).split(",")]
    prompts = [record.text for record in spread_prompts(arguments.prompts, count)]
    if not arguments.speed:
        await compare(prompts, widths, arguments.tokens)
        return
    async with embedded_pair(arguments.draft) as (_, client):
        for width in widths:
            sampling = SamplingParams(max_tokens=arguments.tokens, beams=width)
            await time_modes(client, prompts, sampling, arguments.lengths.split(","))


if __name__ == "__main__":
    asyncio.run(main())
