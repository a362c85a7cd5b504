"""A KV cache in float32 or bfloat16."""

from typing import Any, NamedTuple

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import put, widen


class FloatCache(NamedTuple):
    """A layer's part of the cache."""

    keys: Array  # [num_places, kv_heads, head_dim, block_size] float32, or bfloat16 as uint16
    values: Array  # [num_places, kv_heads, block_size, head_dim] of the same dtype


def write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    for d in range(key.size):
        put(cache.keys[place, head, d], offset, key[d])
        put(cache.values[place, head, offset], d, widen(value[d]))


def scale_scores(cache: Any, place: int, head: int, scores: Array) -> None:
    """Keys are what they are."""


def scale_weights(cache: Any, place: int, head: int, weights: Array) -> None:
    """Values are what they are."""
