"""The softmax over parts of the vocabulary. A program computes one part, or exits if its row does not need it."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.sampling.spec_table import (
    FEW,
    GUMBEL,
    KEY_HIGH,
    KEY_LOW,
    KIND,
    LIKELIEST,
    NUM_COLUMNS,
    OUTSIDE,
    SUPPORT_SIZE,
    TEMPERATURE,
    WANTS_CONFIDENCE,
    SpecTable,
)
from paceline.noise import MIX_1 as _MIX_1
from paceline.noise import MIX_2 as _MIX_2

# Tokens in a part.
SOFTMAX_PART_TOKENS = 4096
# Warps of a program, enough that a part fits into registers.
NUM_WARPS = 8
MIX_1, MIX_2 = tl.constexpr(_MIX_1), tl.constexpr(_MIX_2)


@triton.jit
def gumbel(ids, low, high):
    """Gumbel noise for token ids and a key's halves, float64, as in `engine.sampling.torch_sampler`."""
    x = ids.to(tl.uint32) ^ low.to(tl.uint32)
    x = (x ^ (x >> 16)) * tl.full([], MIX_1, tl.uint32)
    x = x + high.to(tl.uint32)
    x = (x ^ (x >> 15)) * tl.full([], MIX_2, tl.uint32)
    x = x ^ (x >> 15)
    u = (x.to(tl.float64) + 0.5) * (1.0 / 4294967296.0)
    # u has 33 bits, so 1 - u is exact, and log1p is not needed.
    return -tl.log(-tl.log(1.0 - u))


@triton.jit
def weights_of(logits, peak, temperature):
    """exp((logit - peak) / temperature), float64: at most 1 at any temperature."""
    return tl.exp((logits.to(tl.float64) - peak.to(tl.float64)) / temperature)


@triton.jit
def outside_of(weights, token, supports, row, size):
    for index in range(0, size):
        weights = tl.where(token == tl.load(supports + row * FEW + index), 0.0, weights)
    return weights


@triton.jit
def load_parts(values, row, num_parts, other, PADDED: tl.constexpr):
    part = tl.arange(0, PADDED)
    return tl.load(values + row * num_parts + part, mask=part < num_parts, other=other)


@triton.jit
def _survey(logits, peaks, peak_tokens, vocab_size, num_parts, PART: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    own = tl.load(logits + row * vocab_size + token, mask=token < vocab_size, other=-float("inf"))
    tl.store(peaks + row * num_parts + part, tl.max(own, 0))
    tl.store(peak_tokens + row * num_parts + part, part * PART + tl.argmax(own, 0))


@triton.jit
def _weigh(
    logits, numbers, supports, peaks, totals, outsides, scores, choices, vocab_size, num_parts,
    PART: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    spec = numbers + row * NUM_COLUMNS
    kind = tl.load(spec + KIND)
    if (kind != LIKELIEST) | (tl.load(spec + WANTS_CONFIDENCE) > 0):
        peak = tl.max(load_parts(peaks, row, num_parts, -float("inf"), PADDED), 0)
        token = part * PART + tl.arange(0, PART)
        own = tl.load(logits + row * vocab_size + token, mask=token < vocab_size, other=-float("inf"))
        temperature = tl.load(spec + TEMPERATURE)
        weights = weights_of(own, peak, temperature)
        result = row * num_parts + part
        tl.store(totals + result, tl.sum(weights, 0))
        if kind == OUTSIDE:
            size = tl.load(spec + SUPPORT_SIZE).to(tl.int32)
            tl.store(outsides + result, tl.sum(outside_of(weights, token, supports, row, size), 0))
        if kind == GUMBEL:
            low, high = tl.load(spec + KEY_LOW).to(tl.int64), tl.load(spec + KEY_HIGH).to(tl.int64)
            score = (own.to(tl.float64) - peak.to(tl.float64)) / temperature + gumbel(token, low, high)
            tl.store(scores + result, tl.max(score, 0))
            tl.store(choices + result, part * PART + tl.argmax(score, 0))


@dataclass(frozen=True, slots=True)
class Parts:
    """Results of each part of each row: [num_rows, num_parts] each."""

    # Largest logit, and its token.
    peaks: torch.Tensor  # float32
    peak_tokens: torch.Tensor  # int32
    # Sum of all weights, and sum of the weights outside the row's support.
    totals: torch.Tensor  # float64
    outsides: torch.Tensor  # float64
    # Largest Gumbel score (logit / temperature + noise), and its token.
    scores: torch.Tensor  # float64
    choices: torch.Tensor  # int32

    @property
    def num_parts(self) -> int:
        return self.peaks.shape[1]

    @property
    def padded(self) -> int:
        return triton.next_power_of_2(self.num_parts)


def weigh(logits: torch.Tensor, table: SpecTable) -> Parts:
    """Computes the parts of logits: [num_rows, vocab_size] float32."""
    num_rows, vocab_size = logits.shape
    size = (num_rows, triton.cdiv(vocab_size, SOFTMAX_PART_TOKENS))
    wide, index = (logits.new_empty(size, dtype=dtype) for dtype in (torch.float64, torch.int32))
    parts = Parts(
        logits.new_empty(size), index, wide, torch.empty_like(wide), torch.empty_like(wide), torch.empty_like(index)
    )
    _survey[size](logits, parts.peaks, parts.peak_tokens, vocab_size, parts.num_parts, PART=SOFTMAX_PART_TOKENS)
    _weigh[size](
        logits, table.numbers, table.supports, parts.peaks, parts.totals, parts.outsides, parts.scores, parts.choices,
        vocab_size, parts.num_parts, PART=SOFTMAX_PART_TOKENS, PADDED=parts.padded, num_warps=NUM_WARPS,
    )  # fmt: skip
    return parts
