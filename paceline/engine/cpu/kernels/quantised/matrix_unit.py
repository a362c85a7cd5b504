"""Sixteen rows times the unpacked groups of a tile, on the processor's matrix unit (AMX: tdpbsud).

One instruction multiplies a group of 16 rows with 16 output features. Its sums are whole numbers, the same as those of
`dots`, and what follows is computed in the same order: so a row has the same bits with both.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.quantised.formats import GROUP, GROUP_WORDS
from paceline.engine.cpu.kernels.quantised.writing import (
    BYTE,
    FLOAT,
    INDEX,
    VOID,
    WORD_BYTES,
    Place,
    Strided,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.tiles import WIDTH

# Rows and output features of one instruction, and how often the latter are in a tile.
UNIT = 16
_BLOCKS = WIDTH // UNIT
_ROW_BYTES = 64
# Registers: sums, rows and codes of a group.
_SUMS, _ROWS, _CODES = range(3)
# The unit's configuration: palette 1; bytes of a register's row from byte 16 on, its rows from byte 48 on.
CONFIG = np.zeros(64, np.uint8)
CONFIG[0] = 1
CONFIG[16:22:2] = _ROW_BYTES, GROUP, _ROW_BYTES
CONFIG[48:51] = UNIT, UNIT, GROUP_WORDS


def find_unit() -> bool:
    """Whether this processor has the unit and the system allows this process to use it."""
    return has_features("amx-int8", "avx512vnni") and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


class _UnitWriter(Writer):
    """Writes the code for all rows of a chunk, UNIT rows and UNIT output features at a time: a block.

    The unit and what adds its sums take as long as each other, so one works on the next block while the other finishes
    this one: a group's sums are taken from `scratch`, and then those of the next block are put there.
    """

    def __init__(self, builder: Any, chunk: Any, arrays: Sequence[Strided]) -> None:
        super().__init__(builder, UNIT)
        self._chunk = chunk
        self._arrays = arrays

    def write(self, num_units: Any, num_groups: Any, scratch: Place) -> None:
        builder = self.builder
        num_blocks = builder.mul(num_units, INDEX(_BLOCKS))
        with cgutils.for_range(builder, num_groups) as loop:
            self._multiply(INDEX(0), loop.index, scratch)
        with cgutils.for_range(builder, num_blocks) as blocks:
            self._finish_block(blocks.index, num_blocks, num_groups, scratch)

    def _finish_block(self, block: Any, num_blocks: Any, num_groups: Any, scratch: Place) -> None:
        """Adds the block's sums to the output, and multiplies the next block's groups."""
        builder = self.builder
        _, scales, sums, _, factors, offsets, out = self._arrays
        row, lane = self._place_of(block)
        of_scales, of_sums = (array.at(self._chunk, row, INDEX(0)) for array in (scales, sums))
        of_factors, of_offsets = (array.at(INDEX(0), lane) for array in (factors, offsets))
        of_out, following = out.at(row, lane), builder.add(block, INDEX(1))
        has_next = builder.icmp_signed("<", following, num_blocks)

        def add_group(group: Any, values: list[Any]) -> list[Any]:
            factor = self.load(of_factors, 0, builder.mul(group, of_factors.stride_bytes), self.floats)
            offset = self.load(of_offsets, 0, builder.mul(group, of_offsets.stride_bytes), self.floats)
            grown = []
            for index, value in enumerate(values):
                total = self.load(scratch, index, builder.mul(group, INDEX(UNIT * _ROW_BYTES)), self.words)
                scale = self.load(of_scales, index, builder.mul(group, INDEX(WORD_BYTES)), FLOAT)
                shared = self.load(of_sums, index, builder.mul(group, INDEX(WORD_BYTES)), FLOAT)
                grown.append(self.add_scaled(value, total, scale, shared, factor, offset))
            with builder.if_then(has_next):
                self._multiply(following, group, scratch)
            return grown

        start = [self.load(of_out, index, INDEX(0), self.floats) for index in range(UNIT)]
        for index, total in enumerate(self.accumulate(num_groups, start, add_group)):
            self.store(total, of_out, index, INDEX(0))

    def _multiply(self, block: Any, group: Any, scratch: Place) -> None:
        """scratch[group] = the numbers of a block's group times its codes."""
        builder = self.builder
        row, lane = self._place_of(block)
        numbers, codes = self._arrays[0].at(self._chunk, row, INDEX(0)), self._arrays[3].at(INDEX(0), lane)
        word = builder.mul(group, INDEX(GROUP_WORDS))
        self._do("tilezero", _SUMS)
        rows_at = self.address(numbers, 0, builder.mul(word, INDEX(WORD_BYTES)), BYTE)
        self._do("tileloadd64", _ROWS, rows_at, numbers.stride_bytes)
        codes_at = self.address(codes, 0, builder.mul(word, codes.stride_bytes), BYTE)
        self._do("tileloadd64", _CODES, codes_at, codes.stride_bytes)
        self._do("tdpbsud", _SUMS, _ROWS, _CODES)
        sums_at = self.address(scratch, 0, builder.mul(group, INDEX(UNIT * _ROW_BYTES)), BYTE)
        self._do("tilestored64", _SUMS, sums_at, scratch.stride_bytes)

    def _place_of(self, block: Any) -> tuple[Any, Any]:
        """First row, and first output feature."""
        builder = self.builder
        unit, part = builder.udiv(block, INDEX(_BLOCKS)), builder.urem(block, INDEX(_BLOCKS))
        return builder.mul(unit, INDEX(UNIT)), builder.mul(part, INDEX(UNIT))

    def _do(self, name: str, *operands: Any) -> None:
        """An instruction of the unit. A whole number stands for a register."""
        values = [BYTE(operand) if isinstance(operand, int) else operand for operand in operands]
        self.call(f"llvm.x86.{name}", VOID, *values)


def _write_units(builder: Any, count: int, indices: Any, *arrays: Strided) -> None:
    num_units, chunk, num_groups = indices
    *others, scratch, out = arrays
    _UnitWriter(builder, chunk, (*others, out)).write(num_units, num_groups, scratch.at(INDEX(0), INDEX(0)))


def _type_units(
    typing_context: Any, count: Any, num_units: Any, chunk: Any, num_groups: Any, numbers: Any, scales: Any, sums: Any,
    codes: Any, factors: Any, offsets: Any, scratch: Any, out: Any,
) -> Any:  # fmt: skip
    return indexed_code(_write_units, 1, 3, numbers, scales, sums, codes, factors, offsets, scratch, out)


# (1, num_units, chunk, num_groups, numbers, scales, sums, codes, factors, offsets, scratch, out)
#
# out += all rows of a chunk times its weights. num_units: of UNIT rows; scratch: [groups * UNIT, UNIT] int32, for the unit's
# sums; everything else as for `dots.add_dots`.
add_units: Callable[..., None] = intrinsic(_type_units)
