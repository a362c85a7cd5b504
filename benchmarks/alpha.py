"""alpha: the mean of sum min(p, q) from the models' distributions, and the observed acceptance rate.

python -m benchmarks.alpha [--prompts FILE.jsonl] [--count 24] [--tokens 96] [--draft-temperatures 0.7 1.0 1.3]

Texts are generated through the three services. Each decided draft's context is a prefix of the text, so both models
read the text again here and give p and q in exactly these contexts. Observed minus expected is then a sum of
independent coins minus their probabilities, with a known standard error. With --draft-temperatures the draft model
draws at each of them, sampled and coupled, instead of at the request's.
"""

import argparse
import asyncio
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.serving.main import prepare_process

prepare_process()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.deployment import DRAFT, MODEL, embedded_pair  # noqa: E402
from benchmarks.prompts import first_turns  # noqa: E402
from benchmarks.services import OWN_PROMPTS  # noqa: E402
from paceline.client import Completion  # noqa: E402
from paceline.engine.cpu.sampler import CpuSampler  # noqa: E402
from paceline.engine.sampling.specs import SampleTruncated, TruncatedSample  # noqa: E402
from paceline.engine.sampling.torch_sampler import probabilities  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams  # noqa: E402
from tests.engine.feeding import Feeder, load_llama  # noqa: E402

TEMPERATURES = (0.6, 1.0)
KINDS = {
    "sampled, rejection": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION),
    "coupled, match": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
    ),
    "greedy draft, match": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.GREEDY
    ),
}
# The draft server's own defaults.
SUPPORT_SIZE, SUPPORT_MASS = 256, 0.995


@dataclass(slots=True)
class Tally:
    decided: int = 0
    accepted: int = 0
    full: float = 0.0  # of sum min(p, q)
    truncated: float = 0.0  # the same with q on its support
    greedy: float = 0.0  # of p(argmax q)
    variance: float = 0.0  # of the accepted, had each the chance `truncated`


class Judge:
    def __init__(self) -> None:
        torch.set_num_threads(2)
        self._target = Feeder(load_llama(MODEL, torch.bfloat16, max_model_len=2048))
        draft = load_llama(DRAFT, torch.bfloat16, "int8", max_model_len=2048)
        self._draft, self._draft_head = Feeder(draft), draft.head
        self._sampler = CpuSampler()

    @torch.inference_mode()
    def tally(
        self,
        prompt: list[int],
        completion: Completion,
        sampling: SamplingParams,
        speculation: SpeculationParams,
        into: Tally,
    ) -> None:
        """Adds each decided draft of a completion: accepted, or replaced by a recovered token."""
        tokens = prompt + completion.token_ids
        p_logits, known = (feeder.feed_split(tokens, [len(tokens)]) for feeder in (self._target, self._draft))
        q_logits = self._draft_head.to_full_vocab(known)
        of_draft = speculation.draft_sampling(sampling)
        rows = [i for i, origin in enumerate(completion.origins) if origin in "AR"]
        for index in rows:
            row = len(prompt) + index - 1
            p, q = (
                probabilities(logits[row : row + 1].clone(), [params])[0]
                for logits, params in ((p_logits, sampling), (q_logits, of_draft))
            )
            spec = SampleTruncated(of_draft, (), 0.5, SUPPORT_SIZE, SUPPORT_MASS)
            [supported] = self._sampler.sample(q_logits[row : row + 1].clone(), [spec])
            assert isinstance(supported, TruncatedSample)
            on_support = np.minimum(p.numpy()[supported.support], supported.probs).sum()
            into.decided += 1
            into.accepted += completion.origins[index] == "A"
            into.full += float(torch.minimum(p, q).sum())
            into.truncated += float(on_support)
            into.greedy += float(p[int(q.argmax())])
            into.variance += float(on_support * (1 - on_support))


async def generate_all(
    prompts: list[list[int]], sampling: dict[float, list[SamplingParams]], kinds: dict[str, SpeculationParams]
) -> dict[tuple[float, str], list[Completion]]:
    async with embedded_pair() as (_, client):
        places = asyncio.Semaphore(8)

        async def one(prompt: list[int], params: SamplingParams, kind: str) -> Completion:
            async with places:
                return await client.complete(prompt, params, kinds[kind])

        return {
            (temperature, kind): await asyncio.gather(
                *(one(prompt, params, kind) for prompt, params in zip(prompts, sampling[temperature], strict=True))
            )
            for temperature in TEMPERATURES
            for kind in kinds
        }


def kinds_at(draft_temperatures: list[float]) -> dict[str, SpeculationParams]:
    """Returns the kinds in which a draft model draws, at each of these temperatures; all kinds without any."""
    if not draft_temperatures:
        return KINDS
    return {
        f"{name}, draft {each:g}": replace(kind, draft_temperature=each)
        for name, kind in KINDS.items()
        for each in draft_temperatures
        if kind.draft_mode is not DraftMode.GREEDY
    }


def read_chats(path: Path, count: int) -> list[list[int]]:
    """Returns first turns through the chat template."""
    from transformers import AutoTokenizer

    from paceline.engine.models.weights import find_folder

    tokenizer = AutoTokenizer.from_pretrained(find_folder(MODEL, torch.bfloat16, print))
    texts = [
        tokenizer.apply_chat_template([{"role": "user", "content": t}], add_generation_prompt=True, tokenize=False)
        for t in first_turns(path, count)
    ]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument(
        "--draft-temperatures", type=float, nargs="+", default=[], help="at which the draft model draws"
    )
    arguments = parser.parse_args()
    kinds = kinds_at(arguments.draft_temperatures)
    prompts = read_chats(arguments.prompts, arguments.count)
    # Seeds of their own for each temperature: luck shared by both rows would look like a deviation.
    sampling = {
        temperature: [
            SamplingParams(max_tokens=arguments.tokens, temperature=temperature, seed=seed)
            for seed in range(int(temperature * 1000), int(temperature * 1000) + len(prompts))
        ]
        for temperature in TEMPERATURES
    }
    completions = asyncio.run(generate_all(prompts, sampling, kinds))
    width = max(map(len, kinds))
    print(f"T    {'drafting':{width}s}  decided  observed  expected    sd  off by    alpha, full q  on its support")
    judge = Judge()
    for (temperature, kind), done in completions.items():
        tally = Tally()
        for prompt, params, completion in zip(prompts, sampling[temperature], done, strict=True):
            judge.tally(prompt, completion, params, kinds[kind], tally)
        print(f"{temperature:.1f}  {kind:{width}s} {describe(kinds[kind], tally)}", flush=True)


def describe(kind: SpeculationParams, tally: Tally) -> str:
    """Reports observed and expected acceptance, and alpha with all of q and with q on its support."""
    n = tally.decided
    alphas = f"{tally.full / n:13.4f}  {tally.truncated / n:14.4f}"
    observed = f"{n:7d}  {tally.accepted / n:8.4f}"
    if kind.rule is Rule.REJECTION:
        deviation = tally.variance**0.5
        off = (tally.accepted - tally.truncated) / deviation
        return f"{observed}  {tally.truncated / n:8.4f} {deviation / n:.4f} {off:+5.2f} sd  {alphas}"
    if kind.draft_mode is DraftMode.GREEDY:
        return f"{observed}  {tally.greedy / n:8.4f}                  {alphas}"
    # At least (1 - d) / (1 + d) for total variation d (Daliri, Musco, Suresh).
    d = 1 - tally.full / n
    return f"{observed}  >={(1 - d) / (1 + d):6.4f}                  {alphas}"


if __name__ == "__main__":
    main()
