"""Ranks a row's MOST likeliest tokens, and finds which of them top-k, top-p and min-p keep.

Keys combine a logit and its token, so that equal logits rank by lower token id. A bisection finds the MOST largest keys
of each part, then of all parts.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.sampling.partial_softmax import NUM_WARPS, Parts, load_parts, weights_of
from paceline.engine.cuda.sampling.spec_table import (
    FEW,
    IS_COMPLETE,
    IS_CUT,
    KIND,
    MAX_SIZE,
    MIN_MASS,
    MIN_P,
    MOST,
    NUM_COLUMNS,
    NUM_FOUND,
    SIZE,
    SUPPORT,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    SampleTable,
    SpecTable,
)

# Tokens in a part. Parts are larger than in `partial_softmax`, because each part gives MOST keys to merge.
RANKED_PART_TOKENS = 8192
# Keys that a program compares in one pass of a loop.
CHUNK = tl.constexpr(16)


@triton.jit
def key_of(logits, token):
    # -0.0 equals 0.0 but has other bits.
    bits = tl.where(logits == 0.0, 0.0, logits).to(tl.int32, bitcast=True)
    # The larger of two negative floats has the smaller bits, so these are inverted.
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - token.to(tl.int64))


@triton.jit
def token_of(key):
    return (0x7FFFFFFF - (key & 0x7FFFFFFF)).to(tl.int32)


@triton.jit
def logit_of(key):
    ordered = (key >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def needs_ranking(spec):
    return (tl.load(spec + KIND) == SUPPORT) | (tl.load(spec + IS_CUT) > 0)


@triton.jit
def _store_largest(keys, out):
    """Writes the FEW largest of the distinct `keys` to `out`, unordered."""
    # Invariant: at least FEW keys are >= low, and fewer are >= high.
    low, high = tl.min(keys, 0), tl.max(keys, 0) + 1
    held = tl.sum((keys >= low).to(tl.int32), 0)
    while (held != FEW) & (low + 1 < high):
        # The mean of low and high, without their sum, which may overflow.
        middle = (low & high) + ((low ^ high) >> 1)
        count = tl.sum((keys >= middle).to(tl.int32), 0)
        is_enough = count >= FEW
        low, high = tl.where(is_enough, middle, low), tl.where(is_enough, high, middle)
        held = tl.where(is_enough, count, held)
    is_held = keys >= low
    index = tl.cumsum(is_held.to(tl.int32), 0) - 1
    tl.store(out + index, keys, mask=is_held & (index < FEW))


@triton.jit
def _rank_part(logits, numbers, lists, vocab_size, num_parts, PART: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if needs_ranking(numbers + row * NUM_COLUMNS):
        token = part * PART + tl.arange(0, PART)
        own = tl.load(logits + row * vocab_size + token, mask=token < vocab_size, other=-float("inf"))
        _store_largest(key_of(own, token), lists + (row * num_parts + part) * FEW)


@triton.jit
def _merge(lists, numbers, merged, num_parts, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    if needs_ranking(numbers + row * NUM_COLUMNS):
        index = tl.arange(0, PADDED * FEW)
        # Padding after the last part: different keys that are smaller than all others.
        keys = tl.load(lists + row * num_parts * FEW + index, mask=index < num_parts * FEW, other=0)
        lowest = key_of(tl.full([PADDED * FEW], -float("inf"), tl.float32), 0x7FFF0000 + index)
        _store_largest(tl.where(index < num_parts * FEW, keys, lowest), merged + row * FEW)


@triton.jit
def _rank_among(keys, key, peak, temperature, whole):
    rank, before = tl.zeros([FEW], tl.int32), tl.zeros([FEW], tl.float64)
    for start in range(0, FEW, CHUNK):
        other = tl.load(keys + start + tl.arange(0, CHUNK))
        is_likelier = other[None, :] > key[:, None]
        rank += tl.sum(is_likelier.to(tl.int32), 1)
        probs = weights_of(logit_of(other), peak, temperature) / whole
        before += tl.sum(tl.where(is_likelier, probs[None, :], 0.0), 1)
    return rank, before


@triton.jit
def _cut(
    merged, numbers, peaks, totals, ids, kept, samples, sample_ids, vocab_size, num_parts, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    spec, found = numbers + row * NUM_COLUMNS, samples + row * NUM_FOUND
    if needs_ranking(spec):
        peak = tl.max(load_parts(peaks, row, num_parts, -float("inf"), PADDED), 0)
        whole = tl.sum(load_parts(totals, row, num_parts, 0.0, PADDED), 0)
        temperature = tl.load(spec + TEMPERATURE)
        key = tl.load(merged + row * FEW + tl.arange(0, FEW))
        probs = weights_of(logit_of(key), peak, temperature) / whole
        rank, before = _rank_among(merged + row * FEW, key, peak, temperature, whole)
        best, least, total = tl.max(probs, 0), tl.min(probs, 0), tl.sum(probs, 0)
        is_complete = 1.0
        if tl.load(spec + IS_CUT) > 0:
            top_k, top_p, min_p = tl.load(spec + TOP_K), tl.load(spec + TOP_P), tl.load(spec + MIN_P)
            has_top_k = (top_k > 0) & (top_k < vocab_size)
            in_top_k = (rank < top_k) | (has_top_k == 0)
            share = tl.where(has_top_k, tl.sum(tl.where(in_top_k, probs, 0.0), 0), 1.0)
            limit = tl.where(top_p < 1.0, top_p * share, float("inf"))
            keep = in_top_k & (before < limit) & (probs >= min_p * best)
            reaches = ((top_p < 1.0) & (total >= top_p)) | (least < min_p * best)
            is_enough = (has_top_k & (top_k <= FEW)) | ((has_top_k == 0) & reaches) | (vocab_size <= FEW)
            is_complete = tl.where(is_enough, 1.0, 0.0)
            probs = tl.where(keep, probs, 0.0)
            left = tl.sum(probs, 0)
            probs, before = probs / left, before / left
        tl.store(found + IS_COMPLETE, is_complete)
        if tl.load(spec + KIND) == SUPPORT:
            keep = (rank < tl.load(spec + MAX_SIZE)) & (before < tl.load(spec + MIN_MASS)) & (probs > 0)
            size = tl.sum(keep.to(tl.int32), 0)
            tl.store(found + SIZE, size.to(tl.float64))
            probs = tl.where(rank < size, probs, 0.0)
            # Sample from the float32 probabilities that are sent: the verify result needs exactly the q of the sample.
            probs = (probs / tl.sum(probs, 0)).to(tl.float32).to(tl.float64)
            tl.store(sample_ids + row * FEW + rank, token_of(key))
        tl.store(ids + row * FEW + rank, token_of(key))
        tl.store(kept + row * FEW + rank, probs)
    else:
        tl.store(found + IS_COMPLETE, 1.0)


@dataclass(frozen=True, slots=True)
class RankedTokens:
    """The likeliest tokens of the rows that need them, in descending order; undefined for other rows."""

    ids: torch.Tensor  # [num_rows, MOST] int32
    # Normalized over the kept tokens; 0 for the others.
    probs: torch.Tensor  # [num_rows, MOST] float64


def rank(logits: torch.Tensor, table: SpecTable, parts: Parts, samples: SampleTable) -> RankedTokens:
    """Ranks the tokens of logits: [num_rows, vocab_size] float32.

    Writes into `samples` which rows are complete, and the token ids of supports.
    """
    num_rows, vocab_size = logits.shape
    size = (num_rows, triton.cdiv(vocab_size, RANKED_PART_TOKENS))
    lists = logits.new_empty((*size, MOST), dtype=torch.int64)
    merged = logits.new_empty((num_rows, MOST), dtype=torch.int64)
    ranked = RankedTokens(
        merged.new_empty((num_rows, MOST), dtype=torch.int32), torch.empty_like(merged, dtype=torch.float64)
    )
    _rank_part[size](logits, table.numbers, lists, vocab_size, size[1], PART=RANKED_PART_TOKENS, num_warps=NUM_WARPS)
    padded = triton.next_power_of_2(size[1])
    _merge[(num_rows,)](lists, table.numbers, merged, size[1], PADDED=padded, num_warps=NUM_WARPS)
    _cut[(num_rows,)](
        merged, table.numbers, parts.peaks, parts.totals, ranked.ids, ranked.probs, samples.numbers, samples.ids,
        vocab_size, parts.num_parts, PADDED=parts.padded, num_warps=NUM_WARPS,
    )  # fmt: skip
    return ranked
