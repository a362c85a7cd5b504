"""Rows times the unpacked groups of a tile, with the processor's dot product (see `instructions`).

Whole numbers are exact in any order, and each row's sum adds its groups one after the other (`Writer.add_scaled`): so
the product is batch invariant, and has the same bits as on a matrix unit (`matrix_unit`).
"""

from collections.abc import Callable
from typing import Any

from numba.extending import intrinsic

from paceline.engine.cpu.kernels.quantised.formats import GROUP_WORDS
from paceline.engine.cpu.kernels.quantised.instructions import DOT
from paceline.engine.cpu.kernels.quantised.writing import (
    FLOAT,
    INDEX,
    WORD,
    WORD_BYTES,
    Place,
    Strided,
    Writer,
    indexed_code,
)
from paceline.engine.cpu.kernels.tiles import WIDTH

# Most rows of one call, and the output features.
MOST_ROWS, LANES = DOT.most_rows, DOT.lanes
assert WIDTH % LANES == 0


class _DotWriter(Writer):
    """Writes the code for `num_rows` rows and LANES output features, for groups of `group_words` words."""

    def __init__(self, builder: Any, num_rows: int, group_words: int) -> None:
        super().__init__(builder, LANES)
        self._num_rows = num_rows
        self._group_words = group_words

    def write(
        self, num_groups: Any, numbers: Place, scales: Place, sums: Place, codes: Place, factors: Place, offsets: Place,
        out: Place,
    ) -> None:  # fmt: skip
        start = [self.load(out, row, INDEX(0), self.floats) for row in range(self._num_rows)]

        def add_group(group: Any, values: list[Any]) -> list[Any]:
            totals = self._multiply(group, numbers, codes)
            factor = self.load(factors, 0, self.builder.mul(group, factors.stride_bytes), self.floats)
            offset = self.load(offsets, 0, self.builder.mul(group, offsets.stride_bytes), self.floats)
            # A scale of the row stands for GROUP_WORDS words.
            whole = self.builder.udiv(group, INDEX(GROUP_WORDS // self._group_words))
            grown = []
            for row, (value, total) in enumerate(zip(values, totals, strict=True)):
                scale = self.load(scales, row, self.builder.mul(whole, INDEX(WORD_BYTES)), FLOAT)
                shared = self.load(sums, row, self.builder.mul(group, INDEX(WORD_BYTES)), FLOAT)
                grown.append(self.add_scaled(value, total, scale, shared, factor, offset))
            return grown

        for row, total in enumerate(self.accumulate(num_groups, start, add_group)):
            self.store(total, out, row, INDEX(0))

    def _multiply(self, group: Any, numbers: Place, codes: Place) -> list[Any]:
        """The sums of codes * numbers of each row."""
        first = self.builder.mul(group, INDEX(self._group_words))
        words = [self.builder.add(first, INDEX(word)) for word in range(self._group_words)]
        weights = [self.load(codes, 0, self.builder.mul(word, codes.stride_bytes), self.words) for word in words]
        offsets = [self.builder.mul(word, INDEX(WORD_BYTES)) for word in words]
        of_rows = [
            [self.broadcast(self.load(numbers, row, offset, WORD)) for offset in offsets]
            for row in range(self._num_rows)
        ]
        return DOT.dot(self.builder, weights, of_rows)


def _dots_intrinsic(group_words: int) -> Callable[..., None]:
    def write(
        builder: Any, count: int, indices: Any, numbers: Strided, scales: Strided, sums: Strided, codes: Strided,
        factors: Strided, offsets: Strided, out: Strided,
    ) -> None:  # fmt: skip
        row, chunk, lane, num_groups = indices
        zero = INDEX(0)
        _DotWriter(builder, count, group_words).write(
            num_groups, numbers.at(chunk, row, zero), scales.at(chunk, row, zero), sums.at(chunk, row, zero),
            codes.at(zero, lane), factors.at(zero, lane), offsets.at(zero, lane), out.at(row, lane),
        )  # fmt: skip

    def type_dots(
        typing_context: Any, num_rows: Any, row: Any, chunk: Any, lane: Any, num_groups: Any, numbers: Any, scales: Any,
        sums: Any, codes: Any, factors: Any, offsets: Any, out: Any,
    ) -> Any:  # fmt: skip
        return indexed_code(write, MOST_ROWS, 4, numbers, scales, sums, codes, factors, offsets, out)

    made: Callable[..., None] = intrinsic(type_dots)
    return made


# (num_rows, row, chunk, lane, num_groups, numbers, scales, sums, codes, factors, offsets, out)
#
# out[row : row + num_rows, lane : lane + LANES] += these rows of a chunk times its weights.
#
# num_rows: at most MOST_ROWS; num_groups: groups of one scale in the chunk; numbers: [chunks, rows, words] uint32, scales
# and sums as in `rounding.RoundedRows`; codes: [words, WIDTH] uint32; factors and offsets: [groups, WIDTH] float32, of the
# weights; out: [rows, WIDTH] float32.
add_dots = _dots_intrinsic(GROUP_WORDS)
# The same for groups of 16 features; `sums` are the half sums.
add_half_dots = _dots_intrinsic(GROUP_WORDS // 2)
