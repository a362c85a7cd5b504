"""Products with bfloat16 weights, with the processor's dot product of pairs (vdpbf16ps of AVX512-BF16).

For few rows this takes 0.7 of oneDNN's time, for many rows the same time (docs/results.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import prange
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.cpu.kernels.tiles import (
    FLOATS,
    LANES,
    MANY_TILE_ROWS,
    TILE_ROWS,
    WIDTH,
    BFloat,
    DotInstruction,
    Rows,
    TileWriter,
    pack_words,
    rows_at_once,
    tile_code,
)

DOT = DotInstruction(
    "llvm.x86.avx512bf16.dpbf16ps.512", sums=FLOATS, operands=ir.VectorType(BFloat(), 2 * LANES), feature="avx512bf16"
)


def pack_bfloat16(weight: torch.Tensor) -> Array:
    """weight: [out_features, in_features] -> [num_tiles, in_features / 2, WIDTH] pairs (see `tiles`).

    in_features must be even.
    """
    return pack_words(weight.contiguous().view(torch.int32).numpy().view(np.uint32))


def unpack_rows(packed: Array, ids: Array) -> Array:
    """Rows of packed weights: ids: [num_rows] -> [num_rows, in_features] bfloat16."""
    pairs = packed[ids // WIDTH, :, ids % WIDTH]  # [num_rows, in_features / 2]
    return np.ascontiguousarray(pairs).view(np.uint16)


class Bfloat16Weights(NamedTuple):
    """A linear's arrays."""

    packed: Array  # [num_tiles, in_features / 2, WIDTH] pairs
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`


def _write(tile: TileWriter, x: Rows, weights: Rows, bias: Rows, residual: Rows, out: Rows) -> None:
    tile.finish(tile.sum_products(DOT, x, weights), bias, residual, out)


def _type_dot(typing_context: Any, num_rows: Any, x: Any, weights: Any, bias: Any, residual: Any, out: Any) -> Any:
    return tile_code(_write, x, weights, bias, residual, out)


_dot: Callable[..., None] = intrinsic(_type_dot)


@compiled(parallel=True)
def _multiply_bfloat16(x: Array, packed: Array, bias: Array, residual: Array, out: Array) -> None:
    num_rows = x.shape[0]
    at_once = rows_at_once(num_rows, TILE_ROWS, MANY_TILE_ROWS)
    has_residual = residual.shape[0] == num_rows
    for tile in prange(packed.shape[0]):
        start = tile * WIDTH
        for first in range(0, num_rows, at_once):
            _dot(
                min(at_once, num_rows - first), x[first:], packed[tile], bias[start:],
                residual[first * has_residual :, start:], out[first:, start:],
            )  # fmt: skip


@compiled()
def multiply_bfloat16(x: Array, weights: Bfloat16Weights, residual: Array) -> Array:
    """x weights^T + bias + residual, rounded once. Returns [num_rows, padded out_features] bfloat16.

    x: [num_rows, in_features] bfloat16; residual: [num_rows, padded out_features] bfloat16, or the weights' no_residual.
    """
    out = np.empty((x.shape[0], weights.bias.size), np.uint16)
    _multiply_bfloat16(x.view(np.uint32), weights.packed, weights.bias, residual, out)
    return out
