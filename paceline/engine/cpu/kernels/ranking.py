"""The likeliest tokens of a row of logits, in order, and how much of all weights they have."""

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.choosing import find_largest, weigh_row
from paceline.engine.cpu.kernels.scalars import compiled

# Nats below the likeliest within which the tokens are sought first, and how often another distance is tried.
FIRST_DEPTH = np.float32(6.0)
MOST_TRIES = 24


@compiled()
def _count_from(logits: Array, limit: np.float32) -> int:
    count = np.int32(0)
    for i in range(logits.size):
        count += np.int32(1) if logits[i] >= limit else np.int32(0)
    return int(count)


@compiled()
def _find_limit(logits: Array, peak: np.float32, wanted: int) -> np.float32:
    """A logit that at least `wanted` tokens reach, if there are so many, and few more do."""
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
    # Without an end to the search, all that are not banned.
    return peak - deep if deep < np.inf else np.float32(np.finfo(np.float32).min)


@compiled()
def _rank_row(logits: Array, temperature: float, weights: Array, sums: Array, ids: Array, probs: Array) -> int:
    weigh_row(logits, temperature, weights, sums)
    total = sums.sum()
    limit = _find_limit(logits, find_largest(logits), min(ids.size, logits.size))
    found = np.flatnonzero(logits >= limit)
    # Of equals the first token comes first.
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
    """Each row's likeliest tokens, likeliest first, with their probabilities at its temperature.

    logits and weights, to work in: [num_rows, vocab_size] float32; sums, to work in: [num_rows, parts] float64;
    temperatures: [num_rows] float64; ids and probs (float64): [num_rows, most]; counts: [num_rows], of those found:
    fewer than `most` where fewer are left to draw.
    """
    for row in prange(logits.shape[0]):
        counts[row] = _rank_row(logits[row], temperatures[row], weights[row], sums[row], ids[row], probs[row])
