"""Sixteen rows times the unpacked groups of a tile, on the processor's matrix unit (AMX: tdpbsud).

One instruction multiplies a group of 16 rows with 16 output features. Its sums are whole numbers, the same as those of
`dots`, and what follows is computed in the same order: so a row has the same bits with both.
"""

from collections.abc import Callable
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

# Rows and output features of one instruction.
UNIT = 16
_ROW_BYTES = 64
# Registers: sums, rows and codes of a group, and of half a group.
_SUMS, _ROWS, _CODES, _HALF_ROWS, _HALF_CODES = range(5)
# The unit's configuration: palette 1; bytes of a register's row from byte 16 on, its rows from byte 48 on.
CONFIG = np.zeros(64, np.uint8)
CONFIG[0] = 1
for _register, _num_rows, _bytes in (
    (_SUMS, UNIT, _ROW_BYTES), (_ROWS, UNIT, GROUP), (_CODES, GROUP_WORDS, _ROW_BYTES),
    (_HALF_ROWS, UNIT, GROUP // 2), (_HALF_CODES, GROUP_WORDS // 2, _ROW_BYTES),
):  # fmt: skip
    CONFIG[16 + 2 * _register] = _bytes
    CONFIG[48 + _register] = _num_rows


def find_unit() -> bool:
    """Whether this processor has the unit and the system allows this process to use it."""
    return has_features("amx-int8", "avx512vnni") and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


class _UnitWriter(Writer):
    """Writes the code for UNIT rows and UNIT output features."""

    def __init__(self, builder: Any, group_words: int) -> None:
        super().__init__(builder, UNIT)
        self._group_words = group_words
        is_whole = group_words == GROUP_WORDS
        self._rows, self._codes = (_ROWS, _CODES) if is_whole else (_HALF_ROWS, _HALF_CODES)

    def write(
        self, num_groups: Any, numbers: Place, scales: Place, sums: Place, codes: Place, factors: Place, offsets: Place,
        scratch: Place, out: Place,
    ) -> None:  # fmt: skip
        """The processor can't load what the unit stored a moment before: it multiplies all groups, then come their scales."""
        builder = self.builder
        with cgutils.for_range(builder, num_groups) as loop:
            self._multiply(loop.index, numbers, codes, scratch)
        start = [self.load(out, row, INDEX(0), self.floats) for row in range(UNIT)]

        def add_group(group: Any, values: list[Any]) -> list[Any]:
            factor = self.load(factors, 0, builder.mul(group, factors.stride_bytes), self.floats)
            offset = self.load(offsets, 0, builder.mul(group, offsets.stride_bytes), self.floats)
            whole = builder.udiv(group, INDEX(GROUP_WORDS // self._group_words))
            grown = []
            for row, value in enumerate(values):
                total = self.load(scratch, row, builder.mul(group, INDEX(UNIT * _ROW_BYTES)), self.words)
                scale = self.load(scales, row, builder.mul(whole, INDEX(WORD_BYTES)), FLOAT)
                shared = self.load(sums, row, builder.mul(group, INDEX(WORD_BYTES)), FLOAT)
                grown.append(self.add_scaled(value, total, scale, shared, factor, offset))
            return grown

        for row, total in enumerate(self.accumulate(num_groups, start, add_group)):
            self.store(total, out, row, INDEX(0))

    def _multiply(self, group: Any, numbers: Place, codes: Place, scratch: Place) -> None:
        """scratch[group] = the group's numbers times its codes."""
        builder = self.builder
        word = builder.mul(group, INDEX(self._group_words))
        self._do("tilezero", _SUMS)
        rows_at = self.address(numbers, 0, builder.mul(word, INDEX(WORD_BYTES)), BYTE)
        self._do("tileloadd64", self._rows, rows_at, numbers.stride_bytes)
        codes_at = self.address(codes, 0, builder.mul(word, codes.stride_bytes), BYTE)
        self._do("tileloadd64", self._codes, codes_at, codes.stride_bytes)
        self._do("tdpbsud", _SUMS, self._rows, self._codes)
        sums_at = self.address(scratch, 0, builder.mul(group, INDEX(UNIT * _ROW_BYTES)), BYTE)
        self._do("tilestored64", _SUMS, sums_at, scratch.stride_bytes)

    def _do(self, name: str, *operands: Any) -> None:
        """An instruction of the unit. A whole number stands for a register."""
        values = [BYTE(operand) if isinstance(operand, int) else operand for operand in operands]
        self.call(f"llvm.x86.{name}", VOID, *values)


def _unit_intrinsic(group_words: int) -> Callable[..., None]:
    def write(
        builder: Any, count: int, indices: Any, numbers: Strided, scales: Strided, sums: Strided, codes: Strided,
        factors: Strided, offsets: Strided, scratch: Strided, out: Strided,
    ) -> None:  # fmt: skip
        row, chunk, lane, num_groups = indices
        zero = INDEX(0)
        _UnitWriter(builder, group_words).write(
            num_groups, numbers.at(chunk, row, zero), scales.at(chunk, row, zero), sums.at(chunk, row, zero),
            codes.at(zero, lane), factors.at(zero, lane), offsets.at(zero, lane), scratch.at(zero, zero), out.at(row, lane),
        )  # fmt: skip

    def type_unit(
        typing_context: Any, num_units: Any, row: Any, chunk: Any, lane: Any, num_groups: Any, numbers: Any, scales: Any,
        sums: Any, codes: Any, factors: Any, offsets: Any, scratch: Any, out: Any,
    ) -> Any:  # fmt: skip
        return indexed_code(write, 1, 4, numbers, scales, sums, codes, factors, offsets, scratch, out)

    made: Callable[..., None] = intrinsic(type_unit)
    return made


# As `dots.add_dots`, for one unit of UNIT rows. scratch: [groups * UNIT, UNIT] int32, for the unit's sums.
add_unit = _unit_intrinsic(GROUP_WORDS)
add_half_unit = _unit_intrinsic(GROUP_WORDS // 2)
