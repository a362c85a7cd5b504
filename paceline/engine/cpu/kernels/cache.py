"""A layer's part of the KV cache: float32, bfloat16, or int8 with scales. The cache's type selects the functions."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba.extending import overload

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, compiled, put, widen

LARGEST = np.float32(127)
# A row of zeros, too, is divided by its scale.
TINIEST = np.float32(1e-30)


class FloatCache(NamedTuple):
    """Keys and values in float32 or bfloat16."""

    keys: Array  # [num_places, kv_heads, head_dim, block_size] float32, or bfloat16 as uint16
    values: Array  # [num_places, kv_heads, block_size, head_dim] of the same dtype


class Int8Cache(NamedTuple):
    """Keys and values in int8, each with a scale per token and KV head.

    A token is rounded from its own numbers alone, so its bits depend on no other token. Scales multiply scores and softmax
    weights, two rows of block_size numbers per query and block.
    """

    keys: Array  # [num_places, kv_heads, head_dim, block_size] int8
    values: Array  # [num_places, kv_heads, block_size, head_dim] int8
    # Over the same memory. A place holds head_dim numbers of a token, or head_dim / 4 scales: the scales of two places
    # are that much further apart.
    key_scales: Array  # [num_places * head_dim / 4, kv_heads, block_size] float32
    value_scales: Array  # [num_places * head_dim / 4, kv_heads, block_size] float32


Cache = FloatCache | Int8Cache


def _write_float_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    for d in range(key.size):
        put(cache.keys[place, head, d], offset, key[d])
        put(cache.values[place, head, offset], d, widen(value[d]))


@compiled(IN_LANES | {"nnan"})
def _peak(x: Array) -> np.float32:
    peak = TINIEST
    for i in range(x.size):
        size = abs(widen(x[i]))
        peak = size if size > peak else peak
    return peak


@compiled()
def quantize_row(x: Array, out: Array) -> np.float32:
    """Writes x / scale, rounded to [-127, 127], to `out`, and returns the scale.

    x: [width] float32 or bfloat16; out: [width] int8.
    """
    peak = _peak(x)
    factor = LARGEST / peak
    for i in range(x.size):
        out[i] = np.int8(np.rint(widen(x[i]) * factor))
    return peak / LARGEST


def _write_int8_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    at = place * (key.size // 4)
    cache.key_scales[at, head, offset] = quantize_row(key, cache.keys[place, head, :, offset])
    cache.value_scales[at, head, offset] = quantize_row(value, cache.values[place, head, offset])


def _scale_int8_scores(cache: Any, place: int, head: int, scores: Array) -> None:
    scales = cache.key_scales[place * (cache.keys.shape[2] // 4), head]
    for t in range(scores.size):
        scores[t] *= scales[t]


def _scale_int8_weights(cache: Any, place: int, head: int, weights: Array) -> None:
    scales = cache.value_scales[place * (cache.keys.shape[2] // 4), head]
    for t in range(weights.size):
        weights[t] *= scales[t]


def _scale_nothing(cache: Any, place: int, head: int, scores: Array) -> None: ...


def _weigh_nothing(cache: Any, place: int, head: int, weights: Array) -> None: ...


def write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    """Writes a token's key: [head_dim] float32 and value: [head_dim] of the qkv's dtype for one KV head."""
    write = _write_int8_token if isinstance(cache, Int8Cache) else _write_float_token
    write(cache, place, head, offset, key, value)


def scale_scores(cache: Any, place: int, head: int, scores: Array) -> None:
    """Turns a query's products with stored keys into scores: [block_size] float32."""
    (_scale_int8_scores if isinstance(cache, Int8Cache) else _scale_nothing)(cache, place, head, scores)


def scale_weights(cache: Any, place: int, head: int, weights: Array) -> None:
    """Turns softmax weights: [block_size] float32 into factors of stored values."""
    (_scale_int8_weights if isinstance(cache, Int8Cache) else _weigh_nothing)(cache, place, head, weights)


@overload(write_token)
def _write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> Callable[..., None]:
    return _write_int8_token if cache.instance_class is Int8Cache else _write_float_token


@overload(scale_scores)
def _scale_scores(cache: Any, place: int, head: int, scores: Array) -> Callable[..., None]:
    return _scale_int8_scores if cache.instance_class is Int8Cache else _scale_nothing


@overload(scale_weights)
def _scale_weights(cache: Any, place: int, head: int, weights: Array) -> Callable[..., None]:
    return _scale_int8_weights if cache.instance_class is Int8Cache else _weigh_nothing
