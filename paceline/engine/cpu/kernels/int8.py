"""Products with int8 weights (vpdpbusd of AVX512-VNNI).

Each row has a scale and is rounded to 15 bits, then multiplied as two int8 rows, 128 * high + low: the high row alone
would cost a tenth of the accepted drafts. The instruction takes unsigned weights, so 128 is added to them, and 128
times the row's sum subtracted from the result.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, compiled, widen
from paceline.engine.cpu.kernels.tiles import (
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
    rows_at_once,
    tile_code,
)

DOT = DotInstruction(
    "llvm.x86.avx512.vpdpbusd.512", sums=WORDS, operands=ir.VectorType(ir.IntType(8), 4 * LANES), feature="avx512vnni"
)
OFFSET = 128
# A row is 2^HIGH_BITS * high + low, with low in [-64, 63].
HIGH_BITS = 7
LARGEST = np.float32(127 << HIGH_BITS)
ROWS_AT_ONCE = TILE_ROWS // 2
# With this many rows or more the cores share the rounding. For fewer, starting the threads takes longer.
ROWS_TO_SHARE = 8
TINIEST = np.float32(1e-30)


def pack_int8(weight: Array) -> Array:
    """Packs weight: [out_features, in_features] int8 as [num_tiles, in_features / 4, WIDTH] quadruples."""
    missing = -weight.shape[1] % 4
    shifted = np.pad((weight.astype(np.int16) + OFFSET).astype(np.uint8), ((0, 0), (0, missing)))
    return pack_words(shifted.view(np.uint32))


class Int8Weights(NamedTuple):
    packed: Array  # [num_tiles, in_features / 4, WIDTH] quadruples
    scales: Array  # [padded out_features] float32
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`, of the rows' dtype
    kernel_at: int = 0  # see `decoder.with_kernel`


@compiled(IN_LANES)
def round_row(x: Array, parts: Array, sums: Array) -> np.float32:
    """Writes the high and low parts of x / scale, rounded, and their sums. Returns the scale.

    x: [in_features]; parts: [2, >= in_features] int8; sums: [2, 1] int32.
    """
    peak = TINIEST
    for i in range(x.size):
        peak = max(peak, abs(widen(x[i])))
    factor = LARGEST / peak
    total, total_high = np.int32(0), np.int32(0)
    for i in range(x.size):
        value = np.int32(np.rint(widen(x[i]) * factor))
        high = (value + np.int32(1 << (HIGH_BITS - 1))) >> np.int32(HIGH_BITS)
        parts[0, i], parts[1, i] = high, value - (high << np.int32(HIGH_BITS))
        total += value
        total_high += high
    sums[0, 0], sums[1, 0] = total_high, total - (total_high << np.int32(HIGH_BITS))
    return peak / LARGEST


def _write(
    tile: TileWriter, words: Rows, sums: Rows, row_scales: Rows, weights: Rows, scales: Rows, bias: Rows,
    residual: Rows, out: Rows,
) -> None:  # fmt: skip
    builder = tile.builder
    exact: list[list[Any]] = []
    for part, totals in enumerate(tile.sum_products(DOT, words, weights)):
        added = tile.broadcast(builder.mul(tile.load_scalar(sums, part, WORD), WORD(OFFSET)), WORDS)
        exact.append([builder.sitofp(builder.sub(total, added), FLOATS) for total in totals])
    products: list[list[Any]] = []
    for row, (highs, lows) in enumerate(zip(exact[::2], exact[1::2], strict=True)):
        row_scale = tile.broadcast(tile.load_scalar(row_scales, row, ir.FloatType()), FLOATS)
        products.append([])
        for block, (high, low) in enumerate(zip(highs, lows, strict=True)):
            whole = builder.fadd(builder.fmul(high, FLOATS([float(1 << HIGH_BITS)] * LANES)), low)
            products[-1].append(builder.fmul(builder.fmul(whole, row_scale), tile.load_floats(scales, 0, block)))
    tile.finish(products, bias, residual, out)


def _type_dot(
    typing_context: Any, num_rows: Any, words: Any, sums: Any, row_scales: Any, weights: Any, scales: Any, bias: Any,
    residual: Any, out: Any,
) -> Any:  # fmt: skip
    arrays = words, sums, row_scales, weights, scales, bias, residual, out
    return tile_code(_write, *arrays, parts_per_row=2)


_dot: Callable[..., None] = intrinsic(_type_dot)


@compiled(parallel=True)
def _multiply_int8(
    x: Array, parts: Array, words: Array, sums: Array, row_scales: Array, packed: Array, scales: Array,
    bias: Array, residual: Array, out: Array,
) -> None:  # fmt: skip
    num_rows = x.shape[0]
    at_once = rows_at_once(num_rows, ROWS_AT_ONCE, ROWS_AT_ONCE)
    has_residual = residual.shape[0] == num_rows
    if num_rows < ROWS_TO_SHARE:
        for row in range(num_rows):
            row_scales[row, 0] = round_row(x[row], parts[2 * row :], sums[2 * row :])
    else:
        for row in prange(num_rows):
            row_scales[row, 0] = round_row(x[row], parts[2 * row :], sums[2 * row :])
    for tile in prange(packed.shape[0]):
        start = tile * WIDTH
        for first in range(0, num_rows, at_once):
            _dot(
                min(at_once, num_rows - first), words[2 * first :], sums[2 * first :], row_scales[first:],
                packed[tile], scales[start:], bias[start:], residual[first * has_residual :, start:], out[first:, start:],
            )  # fmt: skip


@compiled()
def multiply_int8(x: Array, weights: Int8Weights, residual: Array) -> Array:
    """Computes x (packed * scales)^T + bias + residual: [num_rows, padded out_features] of x's dtype.

    x: [num_rows, in_features]; residual: [num_rows, padded out_features], or the weights' no_residual.
    """
    num_rows = x.shape[0]
    parts = np.zeros((2 * num_rows, 4 * weights.packed.shape[1]), np.int8)
    sums, row_scales = np.empty((2 * num_rows, 1), np.int32), np.empty((num_rows, 1), np.float32)
    out = np.empty((num_rows, weights.bias.size), x.dtype)
    _multiply_int8(
        x, parts, parts.view(np.uint32), sums, row_scales, weights.packed, weights.scales, weights.bias, residual, out
    )
    return out
