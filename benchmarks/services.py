"""The three real services: speed against transformers' generate, the RPCs' share, memory.

python -m benchmarks.services [--prompts FILE.jsonl] [--count 10] [--tokens 80]
"""

import argparse
import asyncio
import time
from pathlib import Path
from typing import Any

from paceline.serving.main import prepare_process

prepare_process()

import torch  # noqa: E402

from benchmarks.deployment import embedded_pair  # noqa: E402
from benchmarks.memory import resident_mib  # noqa: E402
from benchmarks.prompts import first_turns  # noqa: E402
from benchmarks.reference import load_reference  # noqa: E402
from paceline.cli.services import Services  # noqa: E402
from paceline.client import AsyncClient, Completion  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402
from paceline.speculation_params import SpeculationParams  # noqa: E402

PLAIN = SpeculationParams(enabled=False)
# What a user gets unasked.
SPECULATIVE = SpeculationParams()
OWN_PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "prompts.jsonl"


def print_memory(services: Services, when: str) -> None:
    sizes = ", ".join(f"{name} {resident_mib(pid):.0f} MiB" for name, pid in services.pids.items())
    print(f"resident, {when}: {sizes}")


async def timed(
    client: AsyncClient, prompt: Any, tokens: int, speculation: SpeculationParams
) -> tuple[Completion, float]:
    """Returns a completion and its wall time in seconds."""
    started = time.perf_counter()
    salt = "speculative" if speculation.enabled else "plain"
    completion = await client.complete(prompt, SamplingParams(max_tokens=tokens), speculation, cache_salt=salt)
    return completion, time.perf_counter() - started


def reference_run(model: Any, ids: list[int], tokens: int) -> tuple[int, float]:
    """Returns tokens and seconds of transformers' greedy generate."""
    prompt = torch.tensor([ids])
    started = time.perf_counter()
    with torch.inference_mode():
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=tokens)
    return output.shape[1] - len(ids), time.perf_counter() - started


def report(name: str, tokens: int, seconds: float, base: float) -> None:
    print(f"{name:32s} {tokens / seconds:6.1f} tokens/s  {tokens / seconds / base:5.2f} x")


async def compare_speeds(client: AsyncClient, prompts: list[str], tokens: int) -> None:
    """Plain, speculative and transformers take turns on each prompt."""
    from transformers import AutoTokenizer

    reference = load_reference()
    tokenizer = AutoTokenizer.from_pretrained(reference.config._name_or_path)
    totals = {name: [0, 0.0] for name in ("transformers", "plain", "speculative")}
    rounds_ms = rpc_ms = 0.0
    for prompt in prompts:
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer.encode(text, add_special_tokens=False)
        runs = {"transformers": reference_run(reference, ids, tokens)}
        for name, speculation in (("plain", PLAIN), ("speculative", SPECULATIVE)):
            completion, seconds = await timed(client, prompt, tokens, speculation)
            runs[name] = (len(completion.token_ids), seconds)
        timing = completion.finish.timing
        rounds_ms += timing.draft_ms + timing.target_ms + timing.queued_ms + timing.rpc_ms
        rpc_ms += timing.rpc_ms
        for name, (count, seconds) in runs.items():
            totals[name][0] += count
            totals[name][1] += seconds
    base = totals["transformers"][0] / totals["transformers"][1]
    for name, (count, seconds) in totals.items():
        report(name, int(count), seconds, base)
    print(f"the RPCs' share of a speculative round: {rpc_ms / rounds_ms:.1%}")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--tokens", type=int, default=80)
    arguments = parser.parse_args()
    prompts = first_turns(arguments.prompts, arguments.count)
    async with embedded_pair() as (services, client):
        print_memory(services, "idle")
        params = SamplingParams(max_tokens=256, ignore_eos=True)
        await asyncio.gather(
            *(client.complete(prompts[i % len(prompts)], params, SPECULATIVE, cache_salt="memory") for i in range(32))
        )
        print_memory(services, "after 32 generations of 256 tokens at once")
        await compare_speeds(client, prompts, arguments.tokens)


if __name__ == "__main__":
    asyncio.run(main())
