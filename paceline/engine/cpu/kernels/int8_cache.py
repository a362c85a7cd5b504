"""A KV cache in int8: the key and the value of each token and KV head have a scale of their own.

A token is rounded when it is written, and by its own numbers alone, so that its bits depend on no other. The scale of a key
is a factor of the query's score, and the scale of a value a factor of the softmax weight. So the matrices are multiplied as
they are, and each query scales two rows of block_size numbers a block.
"""

from typing import Any, NamedTuple

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, compiled, widen

LARGEST = np.float32(127)
# A row of zeros, too, is divided by its scale.
TINIEST = np.float32(1e-30)


class Int8Cache(NamedTuple):
    """A layer's part of the cache. What is kept is a number of `keys` or `values` times its token's scale."""

    keys: Array  # [num_places, kv_heads, head_dim, block_size] int8
    values: Array  # [num_places, kv_heads, block_size, head_dim] int8
    # Over the same memory. Where a place holds head_dim numbers of a token, there is room for head_dim / 4 scales: so
    # much further apart are the scales of two places.
    key_scales: Array  # [num_places * head_dim / 4, kv_heads, block_size] float32
    value_scales: Array  # [num_places * head_dim / 4, kv_heads, block_size] float32


@compiled(IN_LANES | {"nnan"})
def _peak(x: Array) -> np.float32:
    peak = TINIEST
    for i in range(x.size):
        size = abs(widen(x[i]))
        peak = size if size > peak else peak
    return peak


@compiled()
def quantise_row(x: Array, out: Array) -> np.float32:
    """Writes x / scale, rounded to whole numbers in [-127, 127], to `out`. Returns the scale.

    x: [width] float32 or bfloat16; out: [width] int8.
    """
    peak = _peak(x)
    factor = LARGEST / peak
    for i in range(x.size):
        out[i] = np.int8(np.rint(widen(x[i]) * factor))
    return peak / LARGEST


def write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    at = place * (key.size // 4)
    cache.key_scales[at, head, offset] = quantise_row(key, cache.keys[place, head, :, offset])
    cache.value_scales[at, head, offset] = quantise_row(value, cache.values[place, head, offset])


def scale_scores(cache: Any, place: int, head: int, scores: Array) -> None:
    scales = cache.key_scales[place * (cache.keys.shape[2] // 4), head]
    for t in range(scores.size):
        scores[t] *= scales[t]


def scale_weights(cache: Any, place: int, head: int, weights: Array) -> None:
    scales = cache.value_scales[place * (cache.keys.shape[2] // 4), head]
    for t in range(weights.size):
        weights[t] *= scales[t]
