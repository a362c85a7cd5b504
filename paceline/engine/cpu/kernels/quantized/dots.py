"""Few rows times a tile of packed weights, with the processor's dot product (see `instructions`).

Codes go through registers into the products. Each row's sum adds its groups in order (`Writer.add_scaled`), so the
product is batch invariant and has the same bits as on a matrix unit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from numba import types
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantized.instruction_writer import (
    FLOAT,
    INDEX,
    WORD,
    WORD_BYTES,
    GroupReader,
    Strided,
    StridedPointer,
    format_code,
    indexed_code,
)
from paceline.engine.cpu.kernels.quantized.instructions import DOT, Sum
from paceline.engine.cpu.kernels.quantized.packing import (
    CHUNK_GROUPS,
    FORMATS,
    GROUP,
    GROUP_WORDS,
    Format,
)
from paceline.engine.cpu.kernels.quantized.rounding import NUM_SCALES
from paceline.engine.cpu.kernels.scalars import address_of, compiled
from paceline.engine.cpu.kernels.tiles import WIDTH

# Most rows of one call.
MOST_ROWS = DOT.row_counts[-1]
_BLOCKS = range(0, WIDTH, DOT.lanes)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A chunk of some `rounding.RoundedRows`."""

    numbers: StridedPointer
    scales: StridedPointer
    minus: StridedPointer


class _DotWriter(GroupReader):
    """Writes the code for `num_rows` rows and a tile of one format."""

    def __init__(self, builder: Any, fmt: Format, num_rows: int) -> None:
        super().__init__(builder, fmt, DOT.lanes)
        self._rows = range(num_rows)

    def add_chunk(self, chunk: Any, num_groups: Any, rows: _Rows, values: list[Any]) -> list[Any]:
        """The rows' sums, [rows x blocks of output features], grown by the chunk at this address."""
        common = [self.common_scales(chunk, lane) for lane in _BLOCKS]

        def add_group(group: Any, before: list[Any]) -> list[Any]:
            unit = self.unit_of(chunk, group)
            self.fetch(unit, group)
            of_blocks = [
                self.scales(unit, group, lane, of_block) for lane, of_block in zip(_BLOCKS, common, strict=True)
            ]
            num_parts = len(of_blocks[0])
            for part in range(num_parts):
                words = range(part * GROUP_WORDS // num_parts, (part + 1) * GROUP_WORDS // num_parts)
                totals = self._multiply(unit, group, words, rows)
                before = self._scale(group, rows, totals, [parts[part] for parts in of_blocks], before)
            return before

        return self.accumulate(num_groups, values, add_group)

    def _multiply(self, unit: Any, group: Any, words: range, rows: _Rows) -> list[Any]:
        """The sums of codes * numbers over some words of a group. Two words that share bytes follow each other."""
        builder, half = self.builder, len(words) // 2
        codes = self.codes_of(unit, group)
        start = [self._start(group, words, rows, row) for row in self._rows]
        sums: list[list[Sum]] = [[DOT.sum_from(of_row, self._format.bits) for _ in _BLOCKS] for of_row in start]
        pairs = zip(words[:half], words[half:], strict=True)
        for word in (word for pair in pairs for word in pair):
            weights = [self.code(codes, word, lane) for lane in _BLOCKS]
            offset = builder.add(builder.mul(group, INDEX(GROUP_WORDS * WORD_BYTES)), INDEX(word * WORD_BYTES))
            for row, of_row in zip(self._rows, sums, strict=True):
                numbers = self.broadcast(self.load(rows.numbers, row, offset, WORD))
                for of_block, weight in zip(of_row, weights, strict=True):
                    of_block.add(builder, weight, numbers)
        return [of_block.total(builder) for of_row in sums for of_block in of_row]

    def _start(self, group: Any, words: range, rows: _Rows, row: int) -> Any:
        """Returns -zero * the sum of the numbers, which accounts for the code of weight 0."""
        builder = self.builder
        if self._format.zero is None:
            return self.words([0] * DOT.lanes)
        half, halves = GROUP_WORDS // 2, builder.mul(group, INDEX(2 * WORD_BYTES))
        parts = range(words.start // half, words.stop // half)
        of_parts = [self.load(rows.minus, row, builder.add(halves, INDEX(part * WORD_BYTES)), WORD) for part in parts]
        minus = of_parts[0] if len(of_parts) == 1 else builder.add(*of_parts)
        return self.broadcast(builder.mul(minus, WORD(self._format.zero)))

    def _scale(
        self, group: Any, rows: _Rows, totals: list[Any], scales: Sequence[tuple[Any, Any | None]], before: list[Any]
    ) -> list[Any]:
        at = self.builder.mul(group, INDEX(WORD_BYTES))
        grown: list[Any] = []
        for row in self._rows:
            scale, shared = (self.load(rows.scales, NUM_SCALES * row + index, at, FLOAT) for index in range(NUM_SCALES))
            for factor, offset in scales:
                value, total = before[len(grown)], totals[len(grown)]
                grown.append(self.add_scaled(value, total, scale, shared, factor, offset))
        return grown


def _write_dots(fmt: Format) -> Callable[..., None]:
    def write(
        builder: Any, count: int, indices: Any, numbers: Strided, scales: Strided, minus: Strided,
        out: Strided,
    ) -> None:  # fmt: skip
        numbers, scales, minus, out = (
            array.with_rows(num_bytes)
            for array, num_bytes in (
                (numbers, GROUP * CHUNK_GROUPS),
                (scales, CHUNK_GROUPS * WORD_BYTES),
                (minus, 2 * CHUNK_GROUPS * WORD_BYTES),
                (out, WIDTH * WORD_BYTES),
            )
        )
        row, first_chunk, num_chunks, num_groups, address = indices
        writer, zero = _DotWriter(builder, fmt, count), INDEX(0)
        chunk_bytes = INDEX(CHUNK_GROUPS // fmt.unit_groups * fmt.unit_bytes)
        places = [(index, INDEX(lane * WORD_BYTES)) for index in range(count) for lane in _BLOCKS]
        of_out = out.at(row, zero)

        def add_chunk(index: Any, values: list[Any]) -> list[Any]:
            chunk = builder.add(first_chunk, index)
            rows = _Rows(numbers.at(chunk, row, zero), scales.at(chunk, row, zero, zero), minus.at(chunk, row, zero))
            left = builder.sub(num_groups, builder.mul(index, INDEX(CHUNK_GROUPS)))
            is_whole = builder.icmp_signed(">", left, INDEX(CHUNK_GROUPS))
            here = builder.select(is_whole, INDEX(CHUNK_GROUPS), left)
            return writer.add_chunk(builder.add(address, builder.mul(index, chunk_bytes)), here, rows, values)

        start = [writer.load(of_out, index, at, writer.floats) for index, at in places]
        grown = writer.accumulate(num_chunks, start, add_chunk)
        for (index, at), value in zip(places, grown, strict=True):
            writer.store(value, of_out, index, at)

    return write


def _type_dots(
    typing_context: Any, number: Any, num_rows: Any, row: Any, first_chunk: Any, num_chunks: Any, num_groups: Any,
    address: Any, numbers: Any, scales: Any, minus: Any, out: Any,
) -> Any:  # fmt: skip
    write = _write_dots(FORMATS[number.literal_value])
    return format_code(number, indexed_code(write, DOT.row_counts, 5, numbers, scales, minus, out))


_dots: Callable[..., None] = intrinsic(prefer_literal=True)(_type_dots)


@compiled()
def add_dots(
    number: int, num_rows: int, row: int, chunk: int, num_chunks: int, num_groups: int, address: int, numbers: Array,
    scales: Array, minus: Array, out: Array,
) -> None:  # fmt: skip
    """Adds rows [row : row + num_rows] times chunks of a tile to `out`: [rows, WIDTH] float32.

    number: the format's, a literal; num_rows: MOST_ROWS, or fewer for the last rows (rows after them may be written too);
    chunk: the first; num_groups: in all chunks; address: of the first chunk; numbers: [chunks, rows, words] uint32; scales
    and minus: see `rounding.RoundedRows`.
    """
    _dots(number, num_rows, row, chunk, num_chunks, num_groups, address, numbers, scales, minus, out)


def dots_address(fmt: Format) -> int:
    """Returns the address of `add_dots` for this format."""
    count, rows = types.intp, (types.uint32[:, :, ::1], types.float32[:, :, :, ::1], types.int32[:, :, ::1])
    return address_of(add_dots, types.literal(fmt.number), *[count] * 6, *rows, types.float32[:, ::1])
