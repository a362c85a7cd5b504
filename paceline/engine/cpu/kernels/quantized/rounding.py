"""Rows rounded to 8 bits, with a scale for every 32 features: some features are a hundred times as large as others.

Perplexity stays within 0.3 % (docs/models.md).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantized.instruction_writer import (
    BYTE,
    FLOAT,
    INDEX,
    WORD,
    WORD_BYTES,
    Strided,
    StridedPointer,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.quantized.packing import CHUNK_GROUPS, GROUP
from paceline.engine.cpu.kernels.scalars import compiled

# With this many rows or more the cores share the work.
ROWS_TO_SHARE = 8
# Rows are multiplied in units of this many by a matrix unit.
UNIT_ROWS = 16
# Features with a scale of their own in the finest format.
HALF_GROUP = GROUP // 2
_LARGEST = 127.0
_TINIEST = 2.0**-100
# What there is of each scale: see RoundedRows.
NUM_SCALES = 2


class RoundedRows(NamedTuple):
    """x = scale * number, by chunks of groups.

    Rows and features are padded to whole units and chunks. Padding has undefined numbers and scales of 0.
    """

    numbers: Array  # [chunks, padded rows, features of a chunk] int8
    # [chunks, padded rows, 2, groups of a chunk] float32: the scale, and scale * the sum of the group's numbers: what an
    # offset is multiplied with.
    scales: Array
    # -1 * the sum of the numbers of each half of a group: what a zero is multiplied with.
    minus: Array  # [chunks, padded rows, 2 * groups] int32


class _GroupWriter(Writer):
    """Writes the code that rounds a group of a row: two vectors of HALF_GROUP features."""

    def __init__(self, builder: Any, dtype: Any) -> None:
        super().__init__(builder, HALF_GROUP)
        self._is_float32 = dtype == types.float32

    def write(self, x: StridedPointer, numbers: StridedPointer, scales: StridedPointer, minus: StridedPointer) -> None:
        builder = self.builder
        halves = [self._load(x, half) for half in range(2)]
        peak = FLOAT(_TINIEST)
        for values in halves:
            largest = self.call(
                f"llvm.vector.reduce.fmax.v{HALF_GROUP}f32", FLOAT, self.call("llvm.fabs.v16f32", self.floats, values)
            )
            peak = self.call("llvm.maxnum.f32", FLOAT, peak, largest)
        factor = self.broadcast(builder.fdiv(FLOAT(_LARGEST), peak))
        scale = builder.fmul(peak, FLOAT(1 / _LARGEST))
        totals = []
        for half, values in enumerate(halves):
            rounded = self.call("llvm.rint.v16f32", self.floats, builder.fmul(values, factor))
            whole = builder.fptosi(rounded, self.words)
            self.store(builder.trunc(whole, ir.VectorType(BYTE, HALF_GROUP)), numbers, 0, INDEX(half * HALF_GROUP))
            total = self.call(f"llvm.vector.reduce.add.v{HALF_GROUP}i32", WORD, whole)
            totals.append(total)
            self.store(builder.neg(total), minus, 0, INDEX(half * WORD_BYTES))
        total = builder.sitofp(builder.add(*totals), FLOAT)
        self.store(scale, scales, 0, INDEX(0))
        self.store(builder.fmul(scale, total), scales, 1, INDEX(0))

    def _load(self, x: StridedPointer, half: int) -> Any:
        if self._is_float32:
            return self.load(x, 0, INDEX(half * HALF_GROUP * WORD_BYTES), self.floats)
        bits = self.load(x, 0, INDEX(half * HALF_GROUP * 2), ir.VectorType(ir.IntType(16), HALF_GROUP))
        wide = self.builder.zext(bits, self.words)
        return self.builder.bitcast(self.builder.shl(wide, self.words([16] * HALF_GROUP)), self.floats)


def _type_round(
    typing_context: Any, count: Any, row: Any, num_groups: Any, x: Any, numbers: Any, scales: Any,
    minus: Any,
) -> Any:  # fmt: skip
    def write(
        builder: Any, count: int, indices: Any, x_rows: Strided, numbers: Strided, scales: Strided,
        minus: Strided,
    ) -> None:  # fmt: skip
        row, num_groups = indices
        with cgutils.for_range(builder, num_groups) as loop:
            chunk, place = (operation(loop.index, INDEX(CHUNK_GROUPS)) for operation in (builder.udiv, builder.urem))
            _GroupWriter(builder, x.dtype).write(
                x_rows.at(row, builder.mul(loop.index, INDEX(GROUP))),
                numbers.at(chunk, row, builder.mul(place, INDEX(GROUP))),
                scales.at(chunk, row, INDEX(0), place),
                minus.at(chunk, row, builder.mul(place, INDEX(2))),
            )

    return indexed_code(write, (1,), 2, x, numbers, scales, minus)


# (1, row, num_groups, x, numbers, scales, minus): rounds a row of x, into the arrays of `RoundedRows`.
_round_row: Callable[..., None] = intrinsic(_type_round)


@compiled(parallel=True)
def _round_shared(x: Array, numbers: Array, scales: Array, minus: Array) -> None:
    for row in prange(x.shape[0]):
        _round_row(1, row, x.shape[1] // GROUP, x, numbers, scales, minus)


@compiled()
def round_rows(x: Array) -> RoundedRows:
    """Rounds x: [num_rows, in_features] float32 or bfloat16; in_features is a multiple of GROUP."""
    num_rows, in_features = x.shape
    padded, chunks = -(-num_rows // UNIT_ROWS) * UNIT_ROWS, -(-in_features // (CHUNK_GROUPS * GROUP))
    numbers = np.empty((chunks, padded, CHUNK_GROUPS * GROUP), np.int8)
    scales = np.empty((chunks, padded, NUM_SCALES, CHUNK_GROUPS), np.float32)
    minus = np.empty((chunks, padded, 2 * CHUNK_GROUPS), np.int32)
    # Whatever else there is may be numbers with which processors are slow.
    scales[:, num_rows:] = 0
    if num_rows >= ROWS_TO_SHARE:
        _round_shared(x, numbers, scales, minus)
    else:
        for row in range(num_rows):
            _round_row(1, row, in_features // GROUP, x, numbers, scales, minus)
    return RoundedRows(numbers, scales, minus)
