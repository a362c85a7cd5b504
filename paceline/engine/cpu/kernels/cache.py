"""What attention asks of a layer's part of the KV cache: one form for each kind of cache, selected by its type.

All kinds have `keys` and `values`, matrices that `add_products` multiplies. A further kind is a further module here.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from numba.extending import overload

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import float_cache, int8_cache
from paceline.engine.cpu.kernels.float_cache import FloatCache
from paceline.engine.cpu.kernels.int8_cache import Int8Cache

Cache = FloatCache | Int8Cache

_KINDS: dict[type, ModuleType] = {FloatCache: float_cache, Int8Cache: int8_cache}


def write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> None:
    """Writes a token's key: [head_dim] float32, and its value: [head_dim] of the qkv's dtype, for one KV head."""
    _KINDS[type(cache)].write_token(cache, place, head, offset, key, value)


def scale_scores(cache: Any, place: int, head: int, scores: Array) -> None:
    """Turns products of a query and the block's keys as they are stored into scores: [block_size] float32."""
    _KINDS[type(cache)].scale_scores(cache, place, head, scores)


def scale_weights(cache: Any, place: int, head: int, weights: Array) -> None:
    """Turns softmax weights: [block_size] float32 into factors of the block's values as they are stored."""
    _KINDS[type(cache)].scale_weights(cache, place, head, weights)


@overload(write_token)
def _write_token(cache: Any, place: int, head: int, offset: int, key: Array, value: Array) -> Callable[..., None]:
    return _KINDS[cache.instance_class].write_token


@overload(scale_scores)
def _scale_scores(cache: Any, place: int, head: int, scores: Array) -> Callable[..., None]:
    return _KINDS[cache.instance_class].scale_scores


@overload(scale_weights)
def _scale_weights(cache: Any, place: int, head: int, weights: Array) -> Callable[..., None]:
    return _KINDS[cache.instance_class].scale_weights
