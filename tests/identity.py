"""The promise as a campaign: the same tokens with any drafter and any concurrent requests.

python -m tests.identity [--prompts FILE.jsonl] [--count 60] [--alone-count 60] [--tokens 64]
                         [--dtypes bfloat16,float32] [--modes greedy,coupled] [--pairs stepwise,parallel] [--threads N]
                         [--kv-cache-dtype auto] [--variants "off,hierarchical k=4"] [--apart]

The reference is plain decoding, one prompt at a time. Each variant then runs alone, and all
variants of all prompts run together, many at once in shuffled order. This is done with each pair: the embedded target
with itself in int8 as draft, a token a forward pass; with the small draft and vectors for masks, all tokens in one forward pass;
and, if asked for, Qwen2.5-Coder-1.5B with its 0.5B (`--pairs qwen --dtypes bfloat16`), and the embedded target with that
0.5B, which has another tokenizer (`vocabularies`). With `--apart` the servers share no core,
so that the draft model drafts ahead. Exits with 1 if a single token
differs. Each variant is reported as it ends. The whole takes some four hours on two cores; with `--threads 1`, two
campaigns fit beside each other and end sooner.
"""

import argparse
import asyncio
import contextlib
import itertools
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from paceline.client import AsyncClient
from paceline.engine.models.shapes import MASK_VECTORS
from paceline.engine.models.weights import find_folder
from paceline.prompts import read_prompts
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftMode, EntropyAdaptive, Rule, SpeculationParams
from tests.services import Trio, start_trio

OWN_PROMPTS = Path(__file__).parent / "data" / "prompts.jsonl"
MODEL = "smollm2-135m"
AT_ONCE = 16

OFF = SpeculationParams(enabled=False)
VARIANTS = {
    "off": OFF,
    "n-gram": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM),
    # From answers to the same prompt too, of other modes.
    "suffix": SpeculationParams(num_speculative_tokens=16, drafter=Drafter.SUFFIX),
    "model k=1": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1),
    "model k=2": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=2),
    "model k=4": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "model k=8": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=8),
    "adaptive": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=Bounds(0, 8)),
    "hierarchical k=4": SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=4),
    "hierarchical k=8": SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=8),
    "entropy": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive(Bounds(1, 8))),
    "hybrid": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.HYBRID),
    "default": SpeculationParams(),
}
MODES = ("greedy", "coupled")
# What asks the draft model.
ASKING = ("model k=2", "model k=8", "hierarchical k=8", "adaptive", "hybrid", "default")
NUM_MASKS = 7


class Campaign:
    """One deployment, one mode of sampling."""

    def __init__(
        self, client: AsyncClient, title: str, prompts: list[str], mode: str, tokens: int,
        variants: dict[str, SpeculationParams],
    ) -> None:  # fmt: skip
        self._client = client
        self._title = title
        self._prompts = prompts
        self._mode = mode
        self._tokens = tokens
        self._variants = variants
        self._reference: list[list[int]] = []
        self.compared: Counter[str] = Counter()
        self.differing: Counter[str] = Counter()

    async def run(self, alone_count: int) -> None:
        self._reference = [await self._generate(index, OFF) for index in range(len(self._prompts))]
        for name, variant in self._variants.items():
            for index in range(min(alone_count, len(self._prompts)) if name != "off" else 0):
                self._compare(f"{name}, alone", index, await self._generate(index, variant))
            self._report(f"{name}, alone")
        places = asyncio.Semaphore(AT_ONCE)
        pairs = [(name, index) for name in self._variants for index in range(len(self._prompts))]
        random.Random(0).shuffle(pairs)
        await asyncio.gather(*(self._among_others(places, name, index) for name, index in pairs))
        for name in self._variants:
            self._report(f"{name}, {AT_ONCE} at once")

    async def _among_others(self, places: asyncio.Semaphore, name: str, index: int) -> None:
        async with places:
            self._compare(f"{name}, {AT_ONCE} at once", index, await self._generate(index, self._variants[name]))

    async def _generate(self, index: int, speculation: SpeculationParams) -> list[int]:
        sampling = SamplingParams(max_tokens=self._tokens)
        if self._mode == "coupled":
            sampling = replace(sampling, temperature=0.8, top_p=0.95, seed=index)
            speculation = replace(speculation, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED)
        return (await self._client.complete(self._prompts[index], sampling, speculation)).token_ids

    def _compare(self, name: str, index: int, token_ids: list[int]) -> None:
        self.compared[name] += 1
        self.differing[name] += token_ids != self._reference[index]

    def _report(self, name: str) -> None:
        if compared := self.compared[name]:
            print(f"{self._title} {name:22s} compared {compared:3d}  differing {self.differing[name]}", flush=True)


def parallel_draft(folder: Path) -> str:
    """The small draft with vectors for masks, which nobody trained: what it proposes changes no output."""
    shutil.copytree(find_folder(f"{MODEL}-draft", torch.bfloat16, lambda text: None), folder)
    tensors = load_file(folder / "model.safetensors")
    hidden_size = tensors["model.norm.weight"].shape[0]
    vectors = torch.randn(NUM_MASKS, hidden_size, generator=torch.Generator().manual_seed(0))
    save_file(tensors | {MASK_VECTORS: vectors.mul(0.1).bfloat16()}, folder / "model.safetensors", {"format": "pt"})
    return str(folder)


INT8 = ("--quantization", "int8")
# Target, draft, and flags of the draft alone; from a folder for what is made.
PAIRS: dict[str, Callable[[Path], tuple[str, str, tuple[str, ...]]]] = {
    "stepwise": lambda folder: (MODEL, MODEL, INT8),
    "parallel": lambda folder: (MODEL, parallel_draft(folder / "draft"), INT8),
    "qwen": lambda folder: ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b", ()),
    "vocabularies": lambda folder: (MODEL, "qwen2.5-coder-0.5b", ()),
}


@contextlib.contextmanager
def start_pair(dtype: str, pair: str, *flags: str, is_apart: bool = False) -> Iterator[Trio]:
    """Both models in `dtype`; `flags` for both."""
    with tempfile.TemporaryDirectory(prefix="paceline-identity-") as name:
        folder = Path(name)
        target, draft, own = PAIRS[pair](folder)
        common = ("--dtype", dtype, "--kv-cache-memory", "1GiB", "--max-model-len", "2048", *flags)
        models = ("--model", target, *common), ("--model", draft, *common, *own)
        with start_trio(folder, *models, is_apart=is_apart) as trio:
            yield trio


async def run_campaign(
    trio: Trio, title: str, prompts: list[str], mode: str, tokens: int, alone_count: int,
    variants: dict[str, SpeculationParams] = VARIANTS,
) -> Campaign:  # fmt: skip
    async with AsyncClient(trio.address) as client:
        campaign = Campaign(client, title, prompts, mode, tokens, variants)
        await campaign.run(alone_count)
    return campaign


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, default=OWN_PROMPTS)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--alone-count", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtypes", default="bfloat16,float32")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--pairs", default="stepwise,parallel", help=", ".join(PAIRS))
    parser.add_argument("--threads", type=int, help="CPU threads of each server; default: all cores")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--apart", action="store_true", help="draft and target on cores of their own")
    parser.add_argument("--variants", default=",".join(VARIANTS), help="some of them")
    arguments = parser.parse_args()
    if unknown := set(arguments.pairs.split(",")) - set(PAIRS):
        parser.error(f"--pairs: no pair {', '.join(sorted(unknown))}; there are {', '.join(PAIRS)}")
    prompts = [record.text for record in read_prompts("--prompts", arguments.prompts)][: arguments.count]
    flags = ("--kv-cache-dtype", arguments.kv_cache_dtype)
    flags += ("--threads", str(arguments.threads)) if arguments.threads else ()
    differing, chosen = 0, {name: VARIANTS[name] for name in arguments.variants.split(",")}
    for dtype, pair in itertools.product(arguments.dtypes.split(","), arguments.pairs.split(",")):
        variants = {name: each for name, each in chosen.items() if pair != "parallel" or name in ("off", *ASKING)}
        with start_pair(dtype, pair, *flags, is_apart=arguments.apart) as trio:
            for mode in arguments.modes.split(","):
                title = f"{dtype:9s} {pair:8s} {mode:8s}"
                campaign = asyncio.run(
                    run_campaign(trio, title, prompts, mode, arguments.tokens, arguments.alone_count, variants)
                )
                differing += campaign.differing.total()
    print(f"differing = {differing}")
    sys.exit(differing > 0)


if __name__ == "__main__":
    main()
