"""Kernels that sample a token, by Gumbel-max or inverse transform, and that rank tokens.

Weights are e^((logit - largest logit) / temperature) in float32, with a relative error of |exponent| / 2^24, and their
sums are float64. A row's token depends on that row alone.
"""

from typing import Any

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, LOWEST, compiled, exp_of_negative
from paceline.noise import MIX_1, MIX_2

# Number of weights in a partial sum.
PART = 128
# Larger than the error of an approximate score.
SLACK = np.float32(0.01)
# For u below this a series gives -ln(1 - u) with a relative error of 1e-6.
SMALL = np.float32(2.0**-6)
TO_UNIT = np.float32(2.0**-32)
HALF, THIRD = np.float32(0.5), np.float32(1 / 3)
LN_2 = np.float32(np.log(2.0))
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-37, 1e30
ZERO = np.float32(0)
# Coefficients of a polynomial for ln(m), m in [1, 2], with an error of 1e-5: least squares at Chebyshev points.
_POINTS = 1.5 + 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
L5, L4, L3, L2, L1, L0 = np.polyfit(_POINTS, np.log(_POINTS), 5).astype(np.float32)


@compiled(inline=True)
def _mixed(token: Any, low: Any, high: Any) -> Any:
    """Computes `noise.hash_ids` for one token."""
    x = np.uint32(token) ^ low
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(MIX_1))
    x = np.uint32(x + high)
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(15))) * np.uint32(MIX_2))
    return np.uint32(x ^ (x >> np.uint32(15)))


@compiled(inline=True)
def _log(x: Any) -> Any:
    """Computes ln x for x > 0 in float32, with an error of 1e-5."""
    bits = np.float32(x).view(np.uint32)
    power = np.float32(np.int32(bits >> np.uint32(23)) - np.int32(127))
    m = np.uint32((bits & np.uint32(0x7FFFFF)) | np.uint32(0x3F800000)).view(np.float32)
    series = L5 * m + L4
    series = series * m + L3
    series = series * m + L2
    series = series * m + L1
    return series * m + L0 + power * LN_2


@compiled(inline=True)
def _factor(temperature: Any) -> Any:
    """Returns 1 / temperature, limited to finite numbers above 0: a banned token's score stays -inf."""
    return np.float32(max(min(1 / temperature, LARGEST_FACTOR), SMALLEST_FACTOR))


@compiled(IN_LANES | {"nnan"})
def find_largest(values: Array) -> np.float32:
    largest = values[0]
    for i in range(values.size):
        largest = values[i] if values[i] > largest else largest
    return largest


@compiled()
def _score(
    logits: Array, ids: Array, peak: np.float32, factor: np.float32, low: np.uint32, high: np.uint32, scores: Array
) -> None:
    """Writes (logit - peak) * factor + Gumbel noise: [num_logits] float32, with an error below SLACK."""
    for i in range(logits.size):
        h = _mixed(ids[i], low, high)
        # u and 1 - u are computed separately, so that each keeps all its digits near 0.
        u, rest = (np.float32(h) + HALF) * TO_UNIT, (np.float32(np.uint32(~h)) + HALF) * TO_UNIT
        series = u + u * u * (HALF + u * THIRD)
        exponential = series if u < SMALL else -_log(rest)
        scores[i] = (logits[i] - peak) * factor - _log(exponential)


@compiled()
def _gumbel_row(logits: Array, ids: Array, temperature: float, low: np.uint32, high: np.uint32, scores: Array) -> int:
    """Returns the argmax of (logit - peak) / temperature - ln(-ln(1 - u)), exact for tokens near the maximum."""
    peak = find_largest(logits)
    _score(logits, ids, peak, _factor(temperature), low, high, scores)
    limit = find_largest(scores) - SLACK
    best, chosen = -np.inf, 0
    for i in range(scores.size):
        if scores[i] >= limit:
            u = (np.float64(_mixed(ids[i], low, high)) + 0.5) / 2.0**32
            score = (np.float64(logits[i]) - np.float64(peak)) / temperature - np.log(-np.log1p(-u))
            if score > best:
                best, chosen = score, i
    return chosen


@compiled(IN_LANES)
def _sum(weights: Array) -> float:
    total = 0.0
    for i in range(weights.size):
        total += np.float64(weights[i])
    return total


@compiled()
def weigh_row(logits: Array, temperature: float, weights: Array, sums: Array) -> None:
    """Writes weights: [vocab_size] float32, 0 below e^-87, and their sums by PART: [num_parts] float64."""
    peak, factor = find_largest(logits), _factor(temperature)
    for i in range(logits.size):
        x = (logits[i] - peak) * factor
        weights[i] = exp_of_negative(x) if x > LOWEST else ZERO
    for part in range(sums.size):
        sums[part] = _sum(weights[part * PART : (part + 1) * PART])


@compiled()
def _find(weights: Array, sums: Array, wanted: float) -> int:
    """Returns the first index whose cumulative sum exceeds `wanted`; its weight is 0 only if all are."""
    before, last = 0.0, 0
    for part in range(sums.size):
        if sums[part] == 0:
            continue
        is_here = before + sums[part] > wanted
        first = part * PART
        reached = before
        for i in range(first, min(first + PART, weights.size) if is_here else first):
            reached += np.float64(weights[i])
            if weights[i] > 0:
                last = i
            if reached > wanted:
                return i
        if is_here:
            # Rounding made the sum of the single weights a little smaller than the part's sum.
            return last
        before += sums[part]
    # Rounding made `wanted` as large as the total: take the last token with a weight.
    for i in range(weights.size - 1, -1, -1):
        if weights[i] > 0:
            return i
    return 0


@compiled()
def _outside_row(
    logits: Array, temperature: float, support: Array, uniform: float, weights: Array, sums: Array, inside: Array
) -> tuple[int, float]:
    """Writes the probabilities of `support` into `inside`. Returns a token sampled from the others, and their mass."""
    weigh_row(logits, temperature, weights, sums)
    total = sums.sum()
    for index, token in enumerate(support):
        inside[index] = np.float32(np.float64(weights[token]) / total)
    # Sum over the other tokens. Because of rounding a difference may be above 0 where only banned tokens are left.
    for token in support:
        weights[token] = ZERO
    for token in support:
        part = token // PART
        sums[part] = _sum(weights[part * PART : (part + 1) * PART])
    left = sums.sum()
    return _find(weights, sums, uniform * left), left / total


@compiled(parallel=True)
def choose_by_gumbel(logits: Array, ids: Array, temperatures: Array, keys: Array, scores: Array, tokens: Array) -> None:
    """Writes each row's token index: [num_rows] int64 by Gumbel-max, with `paceline.noise` of the row's key.

    logits and scores (scratch): [num_rows, num_logits] float32; ids: [num_logits] uint32, the token of each logit;
    temperatures: [num_rows] float64; keys: [num_rows] uint64.
    """
    for row in prange(logits.shape[0]):
        low, high = np.uint32(keys[row] & np.uint64(0xFFFFFFFF)), np.uint32(keys[row] >> np.uint64(32))
        tokens[row] = _gumbel_row(logits[row], ids, temperatures[row], low, high, scores[row])


@compiled(parallel=True)
def choose_outside(
    logits: Array, temperatures: Array, supports: Array, starts: Array, uniforms: Array, weights: Array, sums: Array,
    inside: Array, tokens: Array, masses: Array,
) -> None:  # fmt: skip
    """Samples a token of each row from outside its support, and writes the masses outside and probabilities inside.

    logits, weights (scratch): [num_rows, vocab_size] float32; temperatures, uniforms, masses: [num_rows] float64;
    supports: row i has supports[starts[i] : starts[i + 1]]; tokens: [num_rows] int64; inside: float32, like supports;
    sums (scratch): [num_rows, ceil(vocab_size / PART)] float64.
    """
    for row in prange(logits.shape[0]):
        own = slice(starts[row], starts[row + 1])
        tokens[row], masses[row] = _outside_row(
            logits[row], temperatures[row], supports[own], uniforms[row], weights[row], sums[row], inside[own]
        )


# The search for a limit starts this far below the largest logit, in nats.
FIRST_DEPTH = np.float32(6.0)
# How many limits the search tries.
MOST_TRIES = 24


@compiled()
def _count_from(logits: Array, limit: np.float32) -> int:
    count = np.int32(0)
    for i in range(logits.size):
        count += np.int32(1) if logits[i] >= limit else np.int32(0)
    return int(count)


@compiled()
def _find_limit(logits: Array, peak: np.float32, wanted: int) -> np.float32:
    """Returns a limit that at least `wanted` logits, but not many more, reach."""
    shallow, deep, depth = np.float32(0), np.float32(np.inf), FIRST_DEPTH
    for _ in range(MOST_TRIES):
        count = _count_from(logits, peak - depth)
        if count < wanted:
            shallow = depth
        else:
            deep = depth
            if count <= 2 * wanted:
                break
        depth = depth * np.float32(2) if deep == np.inf else np.float32(0.5) * (shallow + deep)
    # If the search finds no limit, take all tokens that are not banned.
    return peak - deep if deep < np.inf else np.float32(np.finfo(np.float32).min)


@compiled()
def _rank_row(logits: Array, temperature: float, weights: Array, sums: Array, ids: Array, probs: Array) -> int:
    weigh_row(logits, temperature, weights, sums)
    total = sums.sum()
    limit = _find_limit(logits, find_largest(logits), min(ids.size, logits.size))
    found = np.flatnonzero(logits >= limit)
    # Of equal logits the lower token id comes first.
    order = np.argsort(-logits[found], kind="mergesort")
    count = min(ids.size, order.size)
    for rank in range(count):
        ids[rank] = found[order[rank]]
        probs[rank] = np.float64(weights[ids[rank]]) / total
    return int(count)


@compiled(parallel=True)
def rank_tokens(
    logits: Array, temperatures: Array, weights: Array, sums: Array, ids: Array, probs: Array, counts: Array
) -> None:
    """Writes each row's likeliest tokens, in order, with their probabilities at the row's temperature.

    logits, weights (scratch): [num_rows, vocab_size] float32; temperatures: [num_rows] float64; ids: [num_rows, most]
    int64; probs: [num_rows, most] float64; counts: [num_rows] int64, below `most` if fewer tokens are allowed;
    sums (scratch): [num_rows, num_parts] float64.
    """
    for row in prange(logits.shape[0]):
        counts[row] = _rank_row(logits[row], temperatures[row], weights[row], sums[row], ids[row], probs[row])
