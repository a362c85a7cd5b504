"""Batch invariant products for attention, and for int8 and bfloat16 weights on any processor."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, typeof, types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import memory
from paceline.engine.cpu.kernels.memory import LINE_BYTES, fetch_rows
from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.quantized.instruction_writer import (
    BYTE,
    FLOAT,
    INDEX,
    VOID,
    WORD,
    WORD_BYTES,
    Strided,
    StridedPointer,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.scalars import address_of, call_at, compiled, put, widen

# The sides of a weight's tile.
TILE = 64
# Rows that are multiplied with a tile of weights together.
TILE_ROWS = 12


# Vectors of a block of columns. The sums of MAX_ROWS rows of them fit into the processor's registers.
_LANES, _VECTORS = (16, 4) if has_features("avx512f") else (8, 2)
BLOCK = _LANES * _VECTORS
MAX_ROWS = 6


class _ProductWriter(Writer):
    """Writes the code for `num_rows` rows of x, a block of columns at a time."""

    def __init__(self, builder: Any, num_rows: int, dtype: Any) -> None:
        super().__init__(builder, _LANES)
        self._rows = range(num_rows)
        self._dtype = dtype

    def write(self, indices: Any, x: Strided, matrix: Strided, ahead: Strided, out: Strided) -> None:
        builder, (first, depth, width) = self.builder, indices
        is_first = builder.icmp_signed("==", first, INDEX(0))
        # The first rows fetch the next matrix. The others ask for lines that they have: cheaper than a branch.
        fetched = Strided(builder, builder.select(is_first, ahead.start, matrix.start), matrix.strides)
        with cgutils.for_range(builder, builder.udiv(width, INDEX(BLOCK))) as blocks:
            column = builder.mul(blocks.index, INDEX(BLOCK))
            to = out.at(first, column)
            places = [(row, INDEX(WORD_BYTES * _LANES * part)) for row in self._rows for part in range(_VECTORS)]

            def add_term(d: Any, sums: list[Any], column: Any = column) -> list[Any]:
                self._fetch(fetched.at(d, column))
                columns = [self._load_columns(matrix.at(d, column), part) for part in range(_VECTORS)]
                grown: list[Any] = []
                for row in self._rows:
                    term = self.broadcast(self.load(x.at(first, d), row, INDEX(0), FLOAT))
                    for value in columns:
                        product = builder.fmul(term, value, flags=("contract",))
                        grown.append(builder.fadd(sums[len(grown)], product, flags=("contract",)))
                return grown

            before = [self.load(to, row, at, self.floats) for row, at in places]
            for (row, at), total in zip(places, self.accumulate(depth, before, add_term), strict=True):
                self.store(total, to, row, at)

    def _load_columns(self, pointer: StridedPointer, part: int) -> Any:
        bits, builder = self._dtype.bitwidth, self.builder
        offset = INDEX(part * _LANES * bits // 8)
        if self._dtype == types.float32:
            return self.load(pointer, 0, offset, self.floats)
        loaded = self.load(pointer, 0, offset, ir.VectorType(ir.IntType(bits), _LANES))
        if self._dtype == types.int8:
            return builder.sitofp(loaded, self.floats)
        wide = builder.shl(builder.zext(loaded, self.words), self.words([16] * _LANES))
        return builder.bitcast(wide, self.floats)

    def _fetch(self, pointer: StridedPointer) -> None:
        for offset in range(0, BLOCK * self._dtype.bitwidth // 8, LINE_BYTES):
            # To read, into the first cache, data.
            address = self.address(pointer, 0, INDEX(offset), BYTE)
            self.call("llvm.prefetch.p0", VOID, address, WORD(0), WORD(3), WORD(1))


def _type_products(
    typing_context: Any, num_rows: Any, first: Any, depth: Any, width: Any, x: Any, matrix: Any, ahead: Any, out: Any
) -> Any:
    def write(builder: Any, count: int, indices: Any, *arrays: Strided) -> None:
        _ProductWriter(builder, count, matrix.dtype).write(indices, *arrays)

    return indexed_code(write, (1, 2, 3, MAX_ROWS), 3, x, matrix, ahead, out)


# (num_rows, first, depth, width, x, matrix, ahead, out): as `add_products`, for `num_rows` rows from `first` on.
_add_rows: Callable[..., None] = intrinsic(_type_products)


@compiled(inline=True)
def _add_row(x: Array, matrix: Array, ahead: Array, out: Array) -> None:
    for row in range(x.shape[0]):
        for d in range(matrix.shape[0]):
            if row == 0:
                fetch_rows(ahead, d, 1)
            term = x[row, d]
            for i in range(matrix.shape[1]):
                out[row, i] += term * np.float32(widen(matrix[d, i]))


@compiled()
def add_products(x: Array, matrix: Array, ahead: Array, out: Array) -> None:
    """Adds x matrix to out.

    x: [num_rows, depth] float32; matrix: [depth, width] float32, bfloat16 or int8; out: [num_rows, width] float32.
    `ahead` is the next matrix, of the same shape, to prefetch. Each row adds its terms in order.
    """
    num_rows, (depth, width) = x.shape[0], matrix.shape
    if width % BLOCK:
        _add_row(x, matrix, ahead, out)
        return
    first = 0
    while first < num_rows:
        count = num_rows - first
        count = MAX_ROWS if count >= MAX_ROWS else min(count, 3)
        _add_rows(count, first, depth, width, x, matrix, ahead, out)
        first += count


def pack_weights(weight: Array) -> Array:
    """Packs weight: [out_features, in_features] as [num_tiles, in_features, TILE], padded to multiples of TILE."""
    padding = (-weight.shape[0] % TILE, -weight.shape[1] % TILE)
    padded = np.pad(weight, ((0, padding[0]), (0, padding[1])))
    return memory.weights.keep(padded.reshape(-1, TILE, padded.shape[1]).transpose(0, 2, 1))


def unpack_weights(packed: Array, ids: Array) -> Array:
    """Returns rows of packed weights: ids: [num_rows] -> [num_rows, padded in_features]."""
    found: Array = packed[ids // TILE, :, ids % TILE]
    return found


class PackedWeights(NamedTuple):
    packed: Array  # int8 or bfloat16, from `pack_weights`
    scale: Array  # [out_features] float32
    bias: Array  # [out_features] float32, or [0]
    products_at: int  # `products_address`


def products_address(packed: Array) -> int:
    """Returns the address of `add_products` for packed weights."""
    weights = typeof(packed[0])
    return address_of(add_products, types.float32[:, :], weights, weights, types.float32[:, ::1])


def multiply_weights(x: Array, weights: PackedWeights, residual: Array | None) -> Array:
    """Computes x (packed * scale)^T + bias + residual in float32: [num_rows, out_features] of x's dtype.

    x: [num_rows, in_features]; residual: [num_rows, out_features] or None.
    """
    out = np.empty((x.shape[0], weights.scale.size), x.dtype)
    wide = np.empty((x.shape[0], weights.packed.shape[1]), np.float32)
    _multiply_weights(x, wide, weights, out[:, :0] if residual is None else residual, out)
    return out


@compiled(parallel=True)
def _multiply_weights(x: Array, wide: Array, weights: PackedWeights, residual: Array, out: Array) -> None:
    packed, scale, bias, products_at = weights
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
    """Scales a tile's sums: [num_rows, TILE], adds bias and residual, and writes them to `out`."""
    for row in range(sums.shape[0]):
        for i in range(min(TILE, scale.size - start)):
            y = sums[row, i] * scale[start + i]
            if bias.size:
                y += bias[start + i]
            if residual.size:
                y += widen(residual[row, start + i])
            put(out[row], start + i, y)
