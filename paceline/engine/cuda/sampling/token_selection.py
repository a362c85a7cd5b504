"""Samples each row's token from its parts' results and its likeliest tokens."""

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.sampling.partial_softmax import (
    NUM_WARPS,
    SOFTMAX_PART_TOKENS,
    gumbel,
    load_parts,
    outside_of,
    weigh,
    weights_of,
)
from paceline.engine.cuda.sampling.ranking import CHUNK, RankedTokens, rank
from paceline.engine.cuda.sampling.spec_table import (
    CONFIDENCE,
    FEW,
    GUMBEL,
    IS_CUT,
    KEY_HIGH,
    KEY_LOW,
    KIND,
    LIKELIEST,
    MASS,
    NUM_COLUMNS,
    NUM_FOUND,
    SUPPORT,
    SUPPORT_SIZE,
    TEMPERATURE,
    TOKEN,
    UNIFORM,
    WANTS_CONFIDENCE,
    SampleTable,
    SpecTable,
)

# Larger than every candidate.
NO_CANDIDATE = tl.constexpr(0x7FFFFFFF)


@triton.jit
def _first_above(sums, weights, target, candidates):
    """Returns the lowest candidate whose cumulative sum exceeds the target.

    If rounding left no such sum, the highest candidate with a weight.
    """
    last = tl.max(tl.where(weights > 0, candidates, 0), 0)
    return tl.minimum(tl.min(tl.where((sums > target) & (weights > 0), candidates, NO_CANDIDATE), 0), last)


@triton.jit
def _from_whole(
    logits, numbers, supports, peaks, totals, outsides, samples, sample_probs, row, vocab_size, num_parts,
    PART: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    spec, found = numbers + row * NUM_COLUMNS, samples + row * NUM_FOUND
    peak = tl.max(load_parts(peaks, row, num_parts, -float("inf"), PADDED), 0)
    whole = tl.sum(load_parts(totals, row, num_parts, 0.0, PADDED), 0)
    temperature, size = tl.load(spec + TEMPERATURE), tl.load(spec + SUPPORT_SIZE).to(tl.int32)
    index = tl.arange(0, FEW)
    support = tl.load(supports + row * FEW + index)
    inside = tl.load(logits + row * vocab_size + support, mask=index < size, other=-float("inf"))
    tl.store(sample_probs + row * FEW + index, (weights_of(inside, peak, temperature) / whole).to(tl.float32))
    # Select the part first, then the token in the part.
    masses, part = load_parts(outsides, row, num_parts, 0.0, PADDED), tl.arange(0, PADDED)
    mass = tl.sum(masses, 0)
    target = tl.load(spec + UNIFORM) * mass
    chosen = _first_above(tl.cumsum(masses, 0), masses, target, part)
    before = tl.sum(tl.where(part < chosen, masses, 0.0), 0)
    token = chosen * PART + tl.arange(0, PART)
    own = tl.load(logits + row * vocab_size + token, mask=token < vocab_size, other=-float("inf"))
    weights = outside_of(weights_of(own, peak, temperature), token, supports, row, size)
    token_in_part = _first_above(before + tl.cumsum(weights, 0), weights, target, tl.arange(0, PART))
    tl.store(found + TOKEN, (chosen * PART + token_in_part).to(tl.float64))
    tl.store(found + MASS, mass / whole)


@triton.jit
def _from_few(numbers, supports, ids, kept, samples, sample_probs, row):
    """Truncated OUTSIDE: as `_from_whole`, from the kept tokens, summed by increasing token id."""
    spec, found = numbers + row * NUM_COLUMNS, samples + row * NUM_FOUND
    index = tl.arange(0, FEW)
    token, support = tl.load(ids + row * FEW + index), tl.load(supports + row * FEW + index)
    is_inside = tl.zeros([FEW], tl.int32)
    inside, sums = tl.zeros([FEW], tl.float64), tl.zeros([FEW], tl.float64)
    for start in range(0, FEW, CHUNK):
        at = row * FEW + start + tl.arange(0, CHUNK)
        other, probs, theirs = tl.load(ids + at), tl.load(kept + at), tl.load(supports + at)
        is_same = other[None, :] == support[:, None]
        inside += tl.sum(tl.where(is_same, probs[None, :], 0.0), 1)
        left = tl.where(tl.max(is_same.to(tl.int32), 0) > 0, 0.0, probs)
        sums += tl.sum(tl.where(other[None, :] <= token[:, None], left[None, :], 0.0), 1)
        is_inside = tl.maximum(is_inside, tl.max((theirs[None, :] == token[:, None]).to(tl.int32), 1))
    weights = tl.where(is_inside > 0, 0.0, tl.load(kept + row * FEW + index))
    mass = tl.max(sums, 0)
    chosen = _first_above(sums, weights, tl.load(spec + UNIFORM) * mass, token)
    tl.store(sample_probs + row * FEW + index, inside.to(tl.float32))
    tl.store(found + TOKEN, chosen.to(tl.float64))
    tl.store(found + MASS, mass)


@triton.jit
def _store_token(logits, spec, found, peaks, totals, token, row, vocab_size, num_parts, PADDED: tl.constexpr):
    tl.store(found + TOKEN, token.to(tl.float64))
    if tl.load(spec + WANTS_CONFIDENCE) > 0:
        peak = tl.max(load_parts(peaks, row, num_parts, -float("inf"), PADDED), 0)
        whole = tl.sum(load_parts(totals, row, num_parts, 0.0, PADDED), 0)
        logit = tl.load(logits + row * vocab_size + token)
        tl.store(found + CONFIDENCE, weights_of(logit, peak, tl.load(spec + TEMPERATURE)) / whole)


@triton.jit
def _select_token(
    logits, numbers, supports, peaks, peak_tokens, totals, outsides, scores, choices, ids, kept, samples, sample_probs,
    vocab_size, num_parts, PART: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    spec, found = numbers + row * NUM_COLUMNS, samples + row * NUM_FOUND
    kind, is_cut = tl.load(spec + KIND), tl.load(spec + IS_CUT) > 0
    ranked = row * FEW + tl.arange(0, FEW)
    if kind == LIKELIEST:
        best = tl.argmax(load_parts(peaks, row, num_parts, -float("inf"), PADDED), 0)
        token = tl.load(peak_tokens + row * num_parts + best)
        _store_token(logits, spec, found, peaks, totals, token, row, vocab_size, num_parts, PADDED)
    elif kind == SUPPORT:
        probs = tl.load(kept + ranked)
        sums = tl.cumsum(probs, 0)
        chosen = _first_above(sums, probs, tl.load(spec + UNIFORM) * tl.max(sums, 0), tl.arange(0, FEW))
        tl.store(found + TOKEN, tl.load(ids + row * FEW + chosen).to(tl.float64))
        tl.store(sample_probs + ranked, probs.to(tl.float32))
    elif kind == GUMBEL:
        if is_cut:
            low, high = tl.load(spec + KEY_LOW).to(tl.int64), tl.load(spec + KEY_HIGH).to(tl.int64)
            probs, noise = tl.load(kept + ranked), gumbel(tl.load(ids + ranked), low, high)
            score = tl.where(probs > 0, tl.log(tl.where(probs > 0, probs, 1.0)) + noise, -float("inf"))
            token = tl.load(ids + row * FEW + tl.argmax(score, 0))
        else:
            best = tl.argmax(load_parts(scores, row, num_parts, -float("inf"), PADDED), 0)
            token = tl.load(choices + row * num_parts + best)
        _store_token(logits, spec, found, peaks, totals, token, row, vocab_size, num_parts, PADDED)
    elif is_cut:
        _from_few(numbers, supports, ids, kept, samples, sample_probs, row)
    else:
        _from_whole(
            logits, numbers, supports, peaks, totals, outsides, samples, sample_probs, row, vocab_size, num_parts,
            PART, PADDED,
        )  # fmt: skip


def sample_all(logits: torch.Tensor, table: SpecTable, samples: SampleTable) -> None:
    """Samples every row of logits: [num_rows, vocab_size] float32, and writes into `samples`."""
    num_rows, vocab_size = logits.shape
    parts = weigh(logits, table)
    ranked: RankedTokens = rank(logits, table, parts, samples)
    _select_token[(num_rows,)](
        logits, table.numbers, table.supports, parts.peaks, parts.peak_tokens, parts.totals, parts.outsides,
        parts.scores, parts.choices, ranked.ids, ranked.probs, samples.numbers, samples.probs, vocab_size, parts.num_parts,
        PART=SOFTMAX_PART_TOKENS, PADDED=parts.padded, num_warps=NUM_WARPS,
    )  # fmt: skip
