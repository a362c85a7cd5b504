"""What a round costs beside its forward passes: with the draft server in its own process, and in the target's.

python -m benchmarks.colocated_draft [--prompts FILE.jsonl] [--count 6] [--tokens 64] [--turns 3] [--pair qwen2.5-coder]

Both deployments run side by side and take turns at each prompt, greedy and at temperature 0.7: plain, with the draft model
alone at k = 3, and unasked. The speed-ups are over the same deployment's plain decoding.
"""

import argparse
import asyncio
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.memory import resident_mib
from benchmarks.prompts import spread_prompts
from paceline.catalog.known_models import PAIRS
from paceline.client import AsyncClient
from paceline.results import Finish
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams

OWN_PROMPTS = Path(__file__).parent.parent / "tests" / "data" / "prompts.jsonl"
WAYS = {
    "plain": SpeculationParams(enabled=False),
    "model, k = 3": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3),
    "default": SpeculationParams(),
}


SAMPLINGS = {"greedy": 0.0, "temperature 0.7": 0.7}
PARTS = ("target_ms", "draft_ms", "queued_ms", "rpc_ms")


class Case:
    """One way of decoding in one deployment."""

    def __init__(self) -> None:
        # Seconds a token, of each generation after its first token.
        self.token_s: list[float] = []
        self._parts, self._num_rounds, self._num_tokens = dict.fromkeys(PARTS, 0.0), 0, 0

    def add(self, finish: Finish) -> None:
        timing, num_tokens = finish.timing, finish.completion_tokens
        self.token_s.append((timing.total_ms - timing.ttft_ms) / 1e3 / (num_tokens - 1))
        for part in PARTS:
            self._parts[part] += getattr(timing, part)
        self._num_rounds += finish.speculation.rounds
        self._num_tokens += num_tokens

    def __str__(self) -> str:
        parts = ", ".join(f"{part.removesuffix('_ms')} {ms / self._num_rounds:.2f}" for part, ms in self._parts.items())
        return f"{self._num_tokens / self._num_rounds:.2f} tokens a round, in ms a round: {parts}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--pair", choices=sorted(PAIRS))
    arguments = parser.parse_args()
    target, draft = PAIRS[arguments.pair] if arguments.pair else (MODEL, DRAFT)
    prompts = [each.text for each in spread_prompts(arguments.prompts, arguments.count)]
    async with AsyncExitStack() as stack:
        clients = {}
        for name, colocates_draft in (("separate", False), ("colocated", True)):
            pair = embedded_pair(draft, remembers=False, target={"model": target}, colocates_draft=colocates_draft)
            services, clients[name] = await stack.enter_async_context(pair)
            await clients[name].complete(prompts[0], SamplingParams(max_tokens=16), WAYS["model, k = 3"])
            sizes = [resident_mib(pid) for service, pid in services.pids.items() if service != "coordinator"]
            print(f"{name}: the model servers take {sum(sizes):.0f} MiB")
        for sampling, temperature in SAMPLINGS.items():
            await compare(clients, prompts, sampling, temperature, arguments.tokens, arguments.turns)


async def compare(
    clients: dict[str, AsyncClient], prompts: list[str], name: str, temperature: float, tokens: int, turns: int
) -> None:
    cases: dict[tuple[str, str], Case] = defaultdict(Case)
    num_different = 0
    for seed, prompt in enumerate(prompts * turns):
        sampling = SamplingParams(max_tokens=tokens, temperature=temperature, seed=seed, ignore_eos=True)
        texts = set()
        for way, speculation in WAYS.items():
            for deployment, client in clients.items():
                completion = await client.complete(prompt, sampling, speculation)
                cases[way, deployment].add(completion.finish)
                texts.add(tuple(completion.token_ids))
        num_different += len(texts) > 1
    print(f"{name}, {len(prompts) * turns} answers of {tokens} tokens, {num_different} differ")
    for (way, deployment), case in cases.items():
        ratios = [plain / own for plain, own in zip(cases["plain", deployment].token_s, case.token_s, strict=True)]
        print(
            f"  {way:12s} {deployment:8s} {median(ratios):.3f} x plain  {1e3 * median(case.token_s):6.2f} ms a token; {case}"
        )


if __name__ == "__main__":
    asyncio.run(main())
