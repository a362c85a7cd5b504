"""Products of 16 rows with the unpacked groups of a tile on the matrix unit (AMX: tdpbssd).

An instruction multiplies a group of 16 rows with 16 output features. Its sums are exact and are scaled in the same
order as in `dots`, so a row has the same bits.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.quantized.instruction_writer import (
    BYTE,
    FLOAT,
    INDEX,
    VOID,
    WORD_BYTES,
    Strided,
    StridedPointer,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.quantized.packing import CHUNK_GROUPS, FORMATS, GROUP, GROUP_WORDS, SCALES_PER_GROUP
from paceline.engine.cpu.kernels.quantized.rounding import NUM_SCALES
from paceline.engine.cpu.kernels.tiles import WIDTH

# Rows and output features of one instruction, and how often the latter are in a tile.
UNIT = 16
_BLOCKS = WIDTH // UNIT
_ROW_BYTES = 64
# Rows of the scratch memory: the sums of a block.
SCRATCH_ROWS = 2 * CHUNK_GROUPS * UNIT
# Registers: sums, rows and codes of a group.
_SUMS, _ROWS, _CODES = range(3)
# The unit's configuration: palette 1; bytes of a register's row from byte 16 on, its rows from byte 48 on.
CONFIG = np.zeros(64, np.uint8)
CONFIG[0] = 1
CONFIG[16:22:2] = _ROW_BYTES, GROUP, _ROW_BYTES
CONFIG[48:51] = UNIT, UNIT, GROUP_WORDS
# Kinds of formats, and each format's.
WITH_OFFSETS, WITHOUT_OFFSETS, IN_HALVES = 1, 2, 3
KIND = np.array([WITH_OFFSETS if each.zero is None else WITHOUT_OFFSETS for each in FORMATS])
KIND[SCALES_PER_GROUP == 2] = IN_HALVES


def find_unit() -> bool:
    """Whether the processor has the unit and the system lets this process use it."""
    return has_features("amx-int8", "avx512vnni") and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


class _UnitWriter(Writer):
    """Writes the code for all rows of a chunk, a block of UNIT rows and UNIT output features at a time.

    While a block's sums are read from `scratch` and added, the unit computes those of the next. They are stored one step
    after the unit starts, so that nothing waits.
    """

    def __init__(self, builder: Any, kind: int, num_groups: Any, chunk: Any, arrays: Sequence[Strided]) -> None:
        super().__init__(builder, UNIT)
        self._has_offsets = kind == WITH_OFFSETS
        # Groups that share the rows' numbers, and their scales.
        self._parts = 2 if kind == IN_HALVES else 1
        self._num_groups = num_groups
        self._chunk = chunk
        numbers, scales, codes, factors, offsets, scratch, out = arrays
        self._numbers = numbers.with_rows(GROUP * CHUNK_GROUPS)
        self._scales = scales.with_rows(CHUNK_GROUPS * WORD_BYTES)
        self._codes, self._factors, self._offsets, self._out = (
            array.with_rows(WIDTH * WORD_BYTES) for array in (codes, factors, offsets, out)
        )
        self._scratch = scratch.with_rows(_ROW_BYTES)

    def write(self, num_units: Any) -> None:
        builder = self.builder
        num_blocks = builder.mul(num_units, INDEX(_BLOCKS))
        with cgutils.for_range(builder, self._num_groups) as loop:
            with builder.if_then(builder.icmp_signed(">", loop.index, INDEX(0))):
                self._store_before(loop.index)
            self._multiply(INDEX(0), loop.index)
        with cgutils.for_range(builder, num_blocks) as blocks:
            self._finish(blocks.index, num_blocks)

    def _finish(self, block: Any, num_blocks: Any) -> None:
        """Adds the block's sums to the output, and multiplies the next block."""
        builder = self.builder
        row, lane = self._place_of(block)
        following, out = builder.add(block, INDEX(1)), self._out.at(row, lane)
        has_next = builder.icmp_signed("<", following, num_blocks)

        def add_group(group: Any, values: list[Any]) -> list[Any]:
            is_first = builder.icmp_signed("==", group, INDEX(0))
            with builder.if_then(builder.or_(has_next, is_first)):
                self._store_before(group)
            with builder.if_then(has_next):
                self._multiply(following, group)
            return self._add_sums(group, row, lane, values)

        start = [self.load(out, index, INDEX(0), self.floats) for index in range(UNIT)]
        for index, total in enumerate(self.accumulate(self._num_groups, start, add_group)):
            self.store(total, out, index, INDEX(0))

    def _add_sums(self, group: Any, row: Any, lane: Any, values: list[Any]) -> list[Any]:
        of_scale = self.builder.udiv(group, INDEX(self._parts))
        scales = self._scales.at(self._chunk, row, INDEX(0), of_scale)
        totals = self._sums_of(group)
        factor = self.load(self._factors.at(group, lane), 0, INDEX(0), self.floats)
        offset = self.load(self._offsets.at(group, lane), 0, INDEX(0), self.floats) if self._has_offsets else None
        grown = []
        for index, value in enumerate(values):
            total = self.load(totals, index, INDEX(0), self.words)
            scale, shared = (
                self.load(scales, NUM_SCALES * index + each, INDEX(0), FLOAT) for each in range(NUM_SCALES)
            )
            grown.append(self.add_scaled(value, total, scale, shared, factor, offset))
        return grown

    def _multiply(self, block: Any, group: Any) -> None:
        """Starts the product of a block's group."""
        builder = self.builder
        row, lane = self._place_of(block)
        of_rows = builder.mul(builder.udiv(group, INDEX(self._parts)), INDEX(GROUP_WORDS))
        numbers = self._numbers.at(self._chunk, row, of_rows)
        codes = self._codes.at(builder.mul(group, INDEX(GROUP_WORDS)), lane)
        self._do("tilezero", _SUMS)
        self._do("tileloadd64", _ROWS, numbers.start, numbers.stride_bytes)
        self._do("tileloadd64", _CODES, codes.start, codes.stride_bytes)
        self._do("tdpbssd", _SUMS, _ROWS, _CODES)

    def _store_before(self, group: Any) -> None:
        """Stores the sums of the previous step: of the last group, if this is the first."""
        builder = self.builder
        is_first = builder.icmp_signed("==", group, INDEX(0))
        before = builder.sub(builder.select(is_first, self._num_groups, group), INDEX(1))
        sums = self._sums_of(before)
        self._do("tilestored64", _SUMS, sums.start, sums.stride_bytes)

    def _sums_of(self, group: Any) -> StridedPointer:
        return self._scratch.at(self.builder.mul(group, INDEX(UNIT)), INDEX(0))

    def _place_of(self, block: Any) -> tuple[Any, Any]:
        """Returns a block's first row and first output feature."""
        builder = self.builder
        unit, part = builder.udiv(block, INDEX(_BLOCKS)), builder.urem(block, INDEX(_BLOCKS))
        return builder.mul(unit, INDEX(UNIT)), builder.mul(part, INDEX(UNIT))

    def _do(self, name: str, *operands: Any) -> None:
        """Calls an instruction. An integer operand is a register's number."""
        values = [BYTE(operand) if isinstance(operand, int) else operand for operand in operands]
        self.call(f"llvm.x86.{name}", VOID, *values)


def _write_units(builder: Any, kind: int, indices: Any, *arrays: Strided) -> None:
    num_units, chunk, num_groups = indices
    _UnitWriter(builder, kind, num_groups, chunk, arrays).write(num_units)


def _type_units(
    typing_context: Any, kind: Any, num_units: Any, chunk: Any, num_groups: Any, numbers: Any, scales: Any,
    codes: Any, factors: Any, offsets: Any, scratch: Any, out: Any,
) -> Any:  # fmt: skip
    return indexed_code(
        _write_units,
        (WITH_OFFSETS, WITHOUT_OFFSETS, IN_HALVES),
        3,
        numbers,
        scales,
        codes,
        factors,
        offsets,
        scratch,
        out,
    )


# (kind, num_units, chunk, num_groups, numbers, scales, codes, factors, offsets, scratch, out)
#
# out += all rows of a chunk times its weights, unpacked by `unpacking.unpack`. kind: of the format, see KIND; num_units:
# of UNIT rows; num_groups: of one scale; numbers and scales as for `dots.add_dots`; codes: [words, WIDTH] uint32;
# scratch: [SCRATCH_ROWS, UNIT] int32, for the unit's sums; out: [rows, WIDTH] float32.
add_units: Callable[..., None] = intrinsic(_type_units)
