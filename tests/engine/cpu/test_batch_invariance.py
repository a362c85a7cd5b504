"""A row's logits are the same bits however many rows, chunks and sequences run together.

Greedy output with and without speculation is the same text only because of this.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.linear import CpuLinear
from paceline.engine.cpu.llama import CpuLlama
from tests.engine.feeding import Feeder, Rows, load_llama

BLOCK_SIZE = 64
LONG = 600
NUM_LAYERS = 30
# All layers have the same shapes: a row that depends on its company in one of them shows in a few as in thirty.
FEW_LAYERS = 4
# Words of a model with few layers: with all, most of the time is the head's.
FEW_WORDS = 8192
# Weights' dtype and quantization and the cache's dtype, as the servers take them, and how many layers.
KINDS = {
    "bfloat16": (torch.bfloat16, "none", None, FEW_LAYERS),
    "int8 cache": (torch.bfloat16, "none", "int8", FEW_LAYERS),
    "float32": (torch.float32, "none", None, FEW_LAYERS),
    "float32, bfloat16 cache": (torch.float32, "none", "bfloat16", FEW_LAYERS),
    "bfloat16, whole": (torch.bfloat16, "none", None, NUM_LAYERS),
    "float32, whole": (torch.float32, "none", None, NUM_LAYERS),
    "int8 cache, whole": (torch.bfloat16, "none", "int8", NUM_LAYERS),
    # The draft's: other bits there change no output, only how often a draft is accepted.
    "int8, whole": (torch.bfloat16, "int8", None, NUM_LAYERS),
}


def _mark(kind: str) -> pytest.MarkDecorator | tuple[()]:
    few = kind.removesuffix(", whole")
    if few != kind and few in KINDS:
        return pytest.mark.campaign
    return () if kind in ("bfloat16", "int8 cache") else pytest.mark.slow


@pytest.fixture(scope="module", params=[pytest.param(kind, marks=_mark(kind)) for kind in KINDS])
def model(request: pytest.FixtureRequest) -> CpuLlama:
    """The real model, not a tiny one: the library picks its kernels by the shapes."""
    dtype, quantization, cache, num_layers = KINDS[request.param]
    num_words = FEW_WORDS if num_layers == FEW_LAYERS else None
    return load_llama("smollm2-135m", dtype, quantization, num_layers=num_layers, num_words=num_words, cache=cache)


@pytest.fixture(scope="module")
def whole(model: CpuLlama) -> torch.Tensor:
    """Logits of the long sequence fed in one forward pass: [LONG, vocab_size]."""
    return Feeder(model, 10).feed_split(tokens_of(0, LONG), [LONG])


def tokens_of(seed: int, count: int) -> list[int]:
    """Random tokens; a longer sequence of the same seed begins with a shorter one."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FEW_WORDS, (4096,), generator=generator)[:count].tolist()


def first_difference(ours: torch.Tensor, reference: torch.Tensor) -> str:
    """Empty where all rows are equal bit for bit."""
    differing = (ours != reference).any(dim=1).nonzero().flatten().tolist()
    return f"rows {differing[:5]} … ({len(differing)} in all) differ" if differing else ""


SPLITS = {
    "chunks of 256": [256, 256, 88],
    "forty at a time": [40] * 15,
    "five at a time": [*[5] * 14, 250, *[5] * 56],
    # From nothing, and across two ends of blocks far into the context.
    "one at a time": [*[1] * 10, 306, *[1] * 16, 238, *[1] * 16, 14],
    # A prompt, then rounds of verification and plain decoding.
    "as it comes": [333, *[5, 1, 3, 17, 1, 8, 9] * 3, 120, 15],
}


@pytest.mark.parametrize("name", SPLITS)
def test_rows_fed_in_parts_have_the_bits_of_one_forward(model: CpuLlama, whole: torch.Tensor, name: str) -> None:
    assert sum(SPLITS[name]) == LONG
    logits = Feeder(model, 10).feed_split(tokens_of(0, LONG), SPLITS[name])
    assert torch.equal(logits, whole), first_difference(logits, whole)


def test_rows_fed_again_after_a_truncate_have_the_same_bits(model: CpuLlama, whole: torch.Tensor) -> None:
    """What a rejected draft left behind in the cache must not be seen."""
    tokens, blocks = tokens_of(0, LONG), list(range(10))
    feeder = Feeder(model, 10)
    feeder.feed(Rows(tokens[:250], 0, blocks))
    for start in range(250, 265, 3):
        feeder.feed(Rows([*tokens[start : start + 3], *tokens_of(9, 6)], start, blocks))
    (logits,) = feeder.feed(Rows(tokens[265:400], 265, blocks))
    assert torch.equal(logits, whole[265:400]), first_difference(logits, whole[265:400])


@dataclass(slots=True)
class Member:
    """A sequence among others: how much it has, how many rows it brings each time, where its blocks lie."""

    seed: int
    length: int
    rows: int
    blocks: list[int]
    prefilled: int = 0
    parts: list[torch.Tensor] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return tokens_of(self.seed, self.length)

    def shares(self) -> Iterator[Rows]:
        """The prompt in one piece, then `rows` at a time."""
        start = 0
        while start < self.length:
            size = self.prefilled if start == 0 and self.prefilled else self.rows
            yield Rows(self.tokens[start : start + size], start, self.blocks)
            start += size


def run_together(model: CpuLlama, members: list[Member]) -> None:
    """Feeds all of them, each at its own pace, until the last is through."""
    feeder = Feeder(model, 64, BLOCK_SIZE)
    running = {id(member): (member, member.shares()) for member in members}
    while running:
        taken = [(member, share) for member, shares in running.values() if (share := next(shares, None)) is not None]
        running = {id(member): running[id(member)] for member, _ in taken}
        if taken:
            results = feeder.feed(*(share for _, share in taken))
            for (member, _), logits in zip(taken, results, strict=True):
                member.parts.append(logits)


def interleaved(turn: int, count: int) -> list[int]:
    """Every fourth block, so that no two of a sequence lie side by side."""
    return [turn + 4 * rank for rank in range(count)]


ARRANGEMENTS: dict[str, Callable[[], list[Member]]] = {
    "blocks interleaved": lambda: [
        Member(0, LONG, 5, interleaved(0, 10), prefilled=480),
        Member(1, 310, 1, interleaved(1, 5), prefilled=280),
        Member(2, 77, 40, interleaved(2, 2)),
        Member(3, 130, 6, interleaved(3, 3)),
    ],
    "blocks side by side": lambda: [
        Member(1, 200, 1, list(range(4)), prefilled=180),
        Member(0, LONG, 40, list(range(4, 14)), prefilled=200),
        Member(2, 9, 2, [14]),
    ],
    "shapes alike": lambda: [
        Member(1, 160, 1, [30, 31, 32], prefilled=140),
        Member(2, 165, 1, [10, 11, 12], prefilled=131),
        Member(3, 180, 1, [20, 21, 22], prefilled=135),
        Member(4, 240, 5, [40, 41, 42, 43], prefilled=192),
        Member(5, 239, 5, [50, 51, 52, 53], prefilled=193),
        Member(6, 170, 1, [3, 1, 2], prefilled=133),
    ],
    "blocks out of order": lambda: [
        Member(0, 300, 8, [40, 3, 22, 61, 5], prefilled=252),
        Member(1, 65, 9, [4, 2]),
        Member(2, 140, 3, [60, 1, 23], prefilled=125),
    ],
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_rows_beside_other_sequences_have_the_bits_they_have_alone(
    model: CpuLlama, whole: torch.Tensor, name: str
) -> None:
    members = ARRANGEMENTS[name]()
    run_together(model, members)
    for member in members:
        alone = whole if member.seed == 0 else Feeder(model, 10).feed_split(member.tokens, [member.length])
        alone = alone[: member.length]
        together = torch.cat(member.parts)
        assert torch.equal(together, alone), f"sequence {member.seed}: {first_difference(together, alone)}"


@pytest.mark.slow
def test_rows_far_into_a_long_context_have_the_same_bits(model: CpuLlama) -> None:
    length = 2100
    tokens = tokens_of(4, length)
    feeder = Feeder(model, 40)
    reference = feeder.feed_split(tokens, [512] * 4 + [52])
    for sizes in ([1000, *[5] * 20, 700, *[1] * 30, 270], [40] * 52 + [20], [2048, *[1] * 40, 12], [length]):
        assert sum(sizes) == length
        logits = feeder.feed_split(tokens, sizes)
        assert torch.equal(logits, reference), f"{sizes[:3]} …: {first_difference(logits, reference)}"


def test_the_check_at_load_finds_nothing_on_this_machine(model: CpuLlama) -> None:
    assert check_batch_invariance(model, BLOCK_SIZE).variant_parts == []


class RowDependent:
    """A linear whose results depend on how many rows it is given: what the check is there to find."""

    def __init__(self, inner: CpuLinear) -> None:
        self.padded = inner.padded
        self._inner = inner

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        return self._inner(x, residual) + np.float32(x.shape[0] * 1e-3)


@pytest.mark.parametrize("block_size", [8, 16, 64])
@pytest.mark.parametrize("max_model_len", [5, 100, 512])
def test_the_check_at_load_fits_any_block_size_and_maximum_length(block_size: int, max_model_len: int) -> None:
    assert check_batch_invariance(load_llama("dummy:tiny", max_model_len=max_model_len), block_size).variant_parts == []


@pytest.mark.parametrize("part", ["qkv", "output", "gate_up", "down"])
def test_the_check_at_load_finds_a_row_dependent_linear(part: str) -> None:
    model = load_llama("dummy:tiny")
    setattr(model.layers[0], part, RowDependent(getattr(model.layers[0], part)))
    assert check_batch_invariance(model, 16).variant_parts == ["decoder layer 0"]


def test_the_check_at_load_finds_a_row_dependent_head() -> None:
    model = load_llama("dummy:tiny")
    model.head.linear = RowDependent(model.head.linear)
    assert check_batch_invariance(model, 16).variant_parts == ["head"]
