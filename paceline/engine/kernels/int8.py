"""Products of int8 rows and weights by the processor's dot product of quadruples (vpdpbusd, of AVX512-VNNI).

A row is rounded to int8 by a scale of its own, and a weight by its output feature's. The instruction takes
weights without a sign, so they are stored with 128 added: 128 times the row's sum is taken off again.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange
from numba.extending import intrinsic

from paceline.engine.kernels.scalars import IN_LANES, Array, compiled, widen
from paceline.engine.kernels.tiles import (
    FLOATS,
    LANES,
    TILE_ROWS,
    WIDTH,
    WORD,
    WORDS,
    DotInstruction,
    Rows,
    TileWriter,
    pack_words,
    tile_code,
)

DOT = DotInstruction(
    "llvm.x86.avx512.vpdpbusd.512", sums=WORDS, operands=ir.VectorType(ir.IntType(8), 4 * LANES), feature="avx512vnni"
)
OFFSET = 128
LARGEST = np.float32(127)
TINIEST = np.float32(1e-30)


def pack_int8(weight: Array) -> Array:
    """weight: [out_features, in_features] int8. [tiles, in_features / 4, WIDTH] quadruples (see `tiles`)."""
    missing = -weight.shape[1] % 4
    shifted = np.pad((weight.astype(np.int16) + OFFSET).astype(np.uint8), ((0, 0), (0, missing)))
    return pack_words(shifted.view(np.uint32))


def multiply_int8(x: Array, packed: Array, scales: Array, bias: Array, residual: Array) -> Array:
    """x packed^T + bias + residual. x: [num_rows, in_features]; scales and bias: [padded out_features] float32;
    residual: [num_rows, padded out_features], or `tiles.no_residual`.

    Returns [num_rows, padded out_features] of x's dtype. Rows are rounded to int8 first.
    """
    num_rows = x.shape[0]
    rounded = np.zeros((num_rows, 4 * packed.shape[1]), np.int8)
    row_scales, row_sums = np.empty((num_rows, 1), np.float32), np.empty((num_rows, 1), np.int32)
    out = np.empty((num_rows, bias.size), x.dtype)
    _multiply_int8(x, rounded, rounded.view(np.uint32), row_scales, row_sums, packed, scales, bias, residual, out)
    return out


@compiled(IN_LANES)
def round_row(x: Array, rounded: Array) -> tuple[np.float32, int]:
    """Writes x / scale as int8, to within half a step; returns the scale and the row's sum."""
    peak = TINIEST
    for i in range(x.size):
        peak = max(peak, abs(widen(x[i])))
    factor, total = LARGEST / peak, 0
    for i in range(x.size):
        rounded[i] = np.int8(np.rint(widen(x[i]) * factor))
        total += rounded[i]
    return peak / LARGEST, total


def _write(
    tile: TileWriter, x: Rows, row_scales: Rows, row_sums: Rows, weights: Rows, scales: Rows, bias: Rows,
    residual: Rows, out: Rows,
) -> None:  # fmt: skip
    builder = tile.builder
    products: list[list[Any]] = []
    for row, of_row in enumerate(tile.sum_products(DOT, x, weights)):
        added = builder.mul(tile.load_scalar(row_sums, row, WORD), WORD(OFFSET))
        row_scale = tile.broadcast(tile.load_scalar(row_scales, row, ir.FloatType()), FLOATS)
        products.append([])
        for block, total in enumerate(of_row):
            exact = builder.sitofp(builder.sub(total, tile.broadcast(added, WORDS)), FLOATS)
            products[-1].append(builder.fmul(builder.fmul(exact, row_scale), tile.load_floats(scales, 0, block)))
    tile.finish(products, bias, residual, out)


def _type_dot(
    typing_context: Any, num_rows: Any, x: Any, row_scales: Any, row_sums: Any, weights: Any, scales: Any, bias: Any,
    residual: Any, out: Any,
) -> Any:  # fmt: skip
    return tile_code(_write, x, row_scales, row_sums, weights, scales, bias, residual, out)


_dot: Callable[..., None] = intrinsic(_type_dot)


@compiled(parallel=True)
def _multiply_int8(
    x: Array, rounded: Array, words: Array, row_scales: Array, row_sums: Array, packed: Array, scales: Array,
    bias: Array, residual: Array, out: Array,
) -> None:  # fmt: skip
    num_rows = x.shape[0]
    has_residual = residual.shape[0] == num_rows
    for row in prange(num_rows):
        row_scales[row, 0], row_sums[row, 0] = round_row(x[row], rounded[row])
    for tile in prange(packed.shape[0]):
        start = tile * WIDTH
        for first in range(0, num_rows, TILE_ROWS):
            _dot(
                min(TILE_ROWS, num_rows - first), words[first:], row_scales[first:], row_sums[first:], packed[tile],
                scales[start:], bias[start:], residual[first * has_residual :, start:], out[first:, start:],
            )  # fmt: skip
