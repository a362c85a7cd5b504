"""DraftMode a token by temperature: Gumbel-max, and inversion of the cumulative sum. A row of logits at a time.

Weights are e^x for x = (logit - largest) / temperature, in float32, off by x parts in 2^24; their sums are float64.
What is drawn from a row depends on that row alone.
"""

from typing import Any

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, LOWEST, compiled, exp_of_negative
from paceline.noise import MIX_1, MIX_2

# Weights in a partial sum.
PART = 128
# Of a score by approximate logarithms: more than it is off by.
SLACK = np.float32(0.01)
# Below 2^-6 a series gives -ln(1 - u) to a part in a million.
SMALL = np.float32(2.0**-6)
TO_UNIT = np.float32(2.0**-32)
HALF, THIRD = np.float32(0.5), np.float32(1 / 3)
LN_2 = np.float32(np.log(2.0))
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-37, 1e30
ZERO = np.float32(0)
# ln(m) for m in [1, 2], to 1e-5: least squares at Chebyshev's points.
_POINTS = 1.5 + 0.5 * np.cos(np.pi * (np.arange(64) + 0.5) / 64)
L5, L4, L3, L2, L1, L0 = np.polyfit(_POINTS, np.log(_POINTS), 5).astype(np.float32)


@compiled(inline=True)
def _mixed(token: Any, low: Any, high: Any) -> Any:
    """`noise.hash_ids` for one token."""
    x = np.uint32(token) ^ low
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(16))) * np.uint32(MIX_1))
    x = np.uint32(x + high)
    x = np.uint32(np.uint32(x ^ (x >> np.uint32(15))) * np.uint32(MIX_2))
    return np.uint32(x ^ (x >> np.uint32(15)))


@compiled(inline=True)
def _log(x: Any) -> Any:
    """ln x for x > 0, float32, to 1e-5."""
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
    """1 / temperature, finite and not 0: 0 times it is 0, and a banned token's -inf times it is -inf, at any temperature."""
    return np.float32(max(min(1 / temperature, LARGEST_FACTOR), SMALLEST_FACTOR))


@compiled(IN_LANES | {"nnan"})
def find_largest(values: Array) -> np.float32:
    largest = values[0]
    for i in range(values.size):
        largest = values[i] if values[i] > largest else largest
    return largest


@compiled()
def _score(logits: Array, peak: np.float32, factor: np.float32, low: np.uint32, high: np.uint32, scores: Array) -> None:
    """scores = (logit - peak) * factor + Gumbel noise, to less than SLACK."""
    for i in range(logits.size):
        h = _mixed(i, low, high)
        # u and 1 - u, each with all its digits where it is near 0.
        u, rest = (np.float32(h) + HALF) * TO_UNIT, (np.float32(np.uint32(~h)) + HALF) * TO_UNIT
        series = u + u * u * (HALF + u * THIRD)
        exponential = series if u < SMALL else -_log(rest)
        scores[i] = (logits[i] - peak) * factor - _log(exponential)


@compiled()
def _gumbel_row(logits: Array, temperature: float, low: np.uint32, high: np.uint32, scores: Array) -> int:
    """argmax((logit - peak) / temperature - ln(-ln(1 - u))): those that come near it are looked at exactly."""
    peak = find_largest(logits)
    _score(logits, peak, _factor(temperature), low, high, scores)
    limit = find_largest(scores) - SLACK
    best, chosen = -np.inf, 0
    for i in range(scores.size):
        if scores[i] >= limit:
            u = (np.float64(_mixed(i, low, high)) + 0.5) / 2.0**32
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
    """Weights, 0 below e^-87, and the sums of each PART of them."""
    peak, factor = find_largest(logits), _factor(temperature)
    for i in range(logits.size):
        x = (logits[i] - peak) * factor
        weights[i] = exp_of_negative(x) if x > LOWEST else ZERO
    for part in range(sums.size):
        sums[part] = _sum(weights[part * PART : (part + 1) * PART])


@compiled()
def _find(weights: Array, sums: Array, wanted: float) -> int:
    """The first index whose cumulative sum exceeds `wanted`: never one of weight 0, unless all are."""
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
            # Added up one by one they come to a little less.
            return last
        before += sums[part]
    # `wanted` is all there is, rounded: the last one.
    for i in range(weights.size - 1, -1, -1):
        if weights[i] > 0:
            return i
    return 0


@compiled()
def _outside_row(
    logits: Array, temperature: float, support: Array, uniform: float, weights: Array, sums: Array, inside: Array
) -> tuple[int, float]:
    """Writes the probabilities of `support` into `inside`; draws from the others, and returns their mass."""
    weigh_row(logits, temperature, weights, sums)
    total = sums.sum()
    for place, token in enumerate(support):
        inside[place] = np.float32(np.float64(weights[token]) / total)
    # Summed over what is left: a difference would let a banned token out by rounding.
    for token in support:
        weights[token] = ZERO
    for token in support:
        part = token // PART
        sums[part] = _sum(weights[part * PART : (part + 1) * PART])
    left = sums.sum()
    return _find(weights, sums, uniform * left), left / total


@compiled(parallel=True)
def choose_by_gumbel(logits: Array, temperatures: Array, keys: Array, scores: Array, tokens: Array) -> None:
    """Tokens by Gumbel-max with `paceline.noise`'s noise of each row's key.

    logits and scores, to work in: [num_rows, vocab_size] float32; temperatures: [num_rows] float64; keys: [num_rows]
    uint64; tokens: [num_rows].
    """
    for row in prange(logits.shape[0]):
        low, high = np.uint32(keys[row] & np.uint64(0xFFFFFFFF)), np.uint32(keys[row] >> np.uint64(32))
        tokens[row] = _gumbel_row(logits[row], temperatures[row], low, high, scores[row])


@compiled(parallel=True)
def choose_outside(
    logits: Array, temperatures: Array, supports: Array, starts: Array, uniforms: Array, weights: Array, sums: Array,
    inside: Array, tokens: Array, masses: Array,
) -> None:  # fmt: skip
    """A token of each row from outside its support, the mass out there, and the probabilities inside.

    logits and weights, to work in: [num_rows, vocab_size] float32; sums, to work in: [num_rows, vocab_size / PART,
    rounded up] float64; supports: the rows' ids one after the other, row's between starts[row] and starts[row + 1];
    inside: float32, like `supports`; the others [num_rows].
    """
    for row in prange(logits.shape[0]):
        own = slice(starts[row], starts[row + 1])
        tokens[row], masses[row] = _outside_row(
            logits[row], temperatures[row], supports[own], uniforms[row], weights[row], sums[row], inside[own]
        )
