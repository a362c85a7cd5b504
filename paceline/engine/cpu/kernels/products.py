"""Matrix products that add each row in one fixed order: attention's two, and those with int8 weights."""

import numpy as np
from numba import prange, types

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.memory import fetch_rows
from paceline.engine.cpu.kernels.scalars import address_of, call_at, compiled, put, widen

# Terms that one pass of an inner loop adds.
STEP = 4
# The usual block size and head_dim, and the sides of an int8 weight's tile.
TILE = 64
# Rows that are multiplied with a tile of weights together.
TILE_ROWS = 12


@compiled(inline=True)
def _add_products_sized(x: Array, matrix: Array, ahead: Array, out: Array, depth: int, width: int) -> None:
    count = x.shape[0]
    threes = count // 3 * 3
    for first in range(0, threes, 3):
        a, b, c = x[first], x[first + 1], x[first + 2]
        to_a, to_b, to_c = out[first], out[first + 1], out[first + 2]
        for d in range(0, depth, STEP):
            if first == 0:
                fetch_rows(ahead, d, STEP)
            a0, a1, a2, a3 = a[d], a[d + 1], a[d + 2], a[d + 3]
            b0, b1, b2, b3 = b[d], b[d + 1], b[d + 2], b[d + 3]
            c0, c1, c2, c3 = c[d], c[d + 1], c[d + 2], c[d + 3]
            for i in range(width):
                m0, m1 = np.float32(widen(matrix[d, i])), np.float32(widen(matrix[d + 1, i]))
                m2, m3 = np.float32(widen(matrix[d + 2, i])), np.float32(widen(matrix[d + 3, i]))
                to_a[i] = to_a[i] + a0 * m0 + a1 * m1 + a2 * m2 + a3 * m3
                to_b[i] = to_b[i] + b0 * m0 + b1 * m1 + b2 * m2 + b3 * m3
                to_c[i] = to_c[i] + c0 * m0 + c1 * m1 + c2 * m2 + c3 * m3
    for first in range(threes, count):
        a, to_a = x[first], out[first]
        for d in range(0, depth, STEP):
            if first == 0:
                fetch_rows(ahead, d, STEP)
            a0, a1, a2, a3 = a[d], a[d + 1], a[d + 2], a[d + 3]
            for i in range(width):
                m0, m1 = np.float32(widen(matrix[d, i])), np.float32(widen(matrix[d + 1, i]))
                m2, m3 = np.float32(widen(matrix[d + 2, i])), np.float32(widen(matrix[d + 3, i]))
                to_a[i] = to_a[i] + a0 * m0 + a1 * m1 + a2 * m2 + a3 * m3


@compiled()
def add_products(x: Array, matrix: Array, ahead: Array, out: Array) -> None:
    """out += x matrix. x: [num_rows, depth], matrix: [depth, width] float32, bfloat16 or int8, out: [num_rows, width].

    `ahead`: the matrix that comes next, of the same shape: it is fetched meanwhile.
    Takes three rows at a time (many models have three queries per KV head), then single rows. The three rows share the
    reads of the matrix; each has its own sums. The depth must be a multiple of STEP.
    """
    depth, width = matrix.shape
    if depth == TILE and width == TILE:
        # Sizes that the compiler knows make this a third faster.
        _add_products_sized(x, matrix, ahead, out, TILE, TILE)
    else:
        _add_products_sized(x, matrix, ahead, out, depth, width)


def pack_int8_weights(weight: Array) -> Array:
    """weight: [out_features, in_features] int8 -> [num_tiles, in_features, TILE], padded with 0 to multiples of TILE."""
    padding = (-weight.shape[0] % TILE, -weight.shape[1] % TILE)
    padded = np.pad(weight, ((0, padding[0]), (0, padding[1])))
    return np.ascontiguousarray(padded.reshape(-1, TILE, padded.shape[1]).transpose(0, 2, 1))


def multiply_int8_weights(x: Array, packed: Array, scale: Array, bias: Array, residual: Array | None) -> Array:
    """x (packed * scale)^T + bias + residual, multiplied in float32. Returns [num_rows, out_features].

    x: [num_rows, in_features]; packed: from `pack_int8_weights`; scale: [out_features] float32; bias: [out_features]
    float32 or [0]; residual: [num_rows, out_features] or None.
    """
    out = np.empty((x.shape[0], scale.size), x.dtype)
    wide = np.empty((x.shape[0], packed.shape[1]), np.float32)
    weights = types.int8[:, ::1]
    products_at = address_of(add_products, types.float32[:, :], weights, weights, types.float32[:, ::1])
    _multiply_weights(products_at, x, wide, packed, scale, bias, out[:, :0] if residual is None else residual, out)
    return out


@compiled(parallel=True)
def _multiply_weights(
    products_at: int, x: Array, wide: Array, packed: Array, scale: Array, bias: Array, residual: Array, out: Array
) -> None:
    num_rows, num_features = x.shape
    for row in prange(num_rows):
        for i in range(num_features):
            wide[row, i] = widen(x[row, i])
        wide[row, num_features:] = np.float32(0)
    for tile in prange(packed.shape[0]):
        for first in range(0, num_rows, TILE_ROWS):
            rows = wide[first : min(first + TILE_ROWS, num_rows)]
            sums = np.zeros((rows.shape[0], TILE), np.float32)
            for start in range(0, packed.shape[1], TILE):
                following = min(start + TILE, packed.shape[1] - TILE)
                ahead = packed[tile, following : following + TILE]
                tile_weights = packed[tile, start : start + TILE]
                call_at(add_products, products_at, (rows[:, start : start + TILE], tile_weights, ahead, sums))
            _finish(sums, tile * TILE, scale, bias, residual[first : first + TILE_ROWS], out[first : first + TILE_ROWS])


@compiled()
def _finish(sums: Array, start: int, scale: Array, bias: Array, residual: Array, out: Array) -> None:
    """Scales one tile's sums: [num_rows, TILE], adds bias and residual, and writes them to `out`."""
    for row in range(sums.shape[0]):
        for i in range(min(TILE, scale.size - start)):
            y = sums[row, i] * scale[start + i]
            if bias.size:
                y += bias[start + i]
            if residual.size:
                y += widen(residual[row, start + i])
            put(out[row], start + i, y)
