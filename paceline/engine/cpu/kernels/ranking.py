"""The ranking kernel: the likeliest tokens of each row of logits, in order, with their probabilities."""

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.choosing import find_largest, weigh_row
from paceline.engine.cpu.kernels.scalars import compiled

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
    """A limit such that at least `wanted` tokens, but not many more, have a logit of the limit or above."""
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
    """Writes each row's likeliest tokens, likeliest first, with their probabilities at the row's temperature.

    Inputs: logits: [num_rows, vocab_size] float32; temperatures: [num_rows] float64. Results: ids: [num_rows, most]
    int64; probs: [num_rows, most] float64; counts: [num_rows] int64, the tokens found in each row: fewer than `most` if
    the row has fewer allowed tokens. Working memory: weights: [num_rows, vocab_size] float32; sums: [num_rows,
    num_parts] float64.
    """
    for row in prange(logits.shape[0]):
        counts[row] = _rank_row(logits[row], temperatures[row], weights[row], sums[row], ids[row], probs[row])
