"""Codes, scales and offsets of packed weights (see `formats`) as vectors in registers.

Written as LLVM code: nothing is stored on the way from the packed bytes to the products.
"""

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_GROUPS,
    GROUP_CODES,
    GROUP_WORDS,
    HALF_BYTES,
    Q6_K,
    Format,
)
from paceline.engine.cpu.kernels.quantised.writing import BYTE, INDEX, VOID, WORD, WORD_BYTES, Place, Writer
from paceline.engine.cpu.kernels.tiles import WIDTH

# Weights are fetched this far ahead, into the second cache: the first holds as few lines on their way as memory is slow.
_AHEAD_BYTES = 16384
_LINE_BYTES = 64
_LOW_BYTES = GROUP_CODES // 2
_LOW_BITS, _HIGH_WORDS = 4, GROUP_WORDS // 2


class GroupReader(Writer):
    """Writes the code that reads groups of one format, `lanes` output features at a time, from lane `lane` of a tile on."""

    def __init__(self, builder: Any, fmt: Format, lanes: int) -> None:
        super().__init__(builder, lanes)
        self._format = fmt

    def unit_of(self, chunk: Any, group: Any) -> Any:
        """The address of the unit that has a chunk's group, in a chunk that begins at the address `chunk`."""
        if self._format.unit_groups == CHUNK_GROUPS:
            return chunk
        return self.builder.add(chunk, self.builder.mul(group, INDEX(self._format.unit_bytes)))

    def codes_of(self, unit: Any, group: Any) -> Place:
        """Where a group's codes are. group: its number in the chunk."""
        start = self.builder.add(unit, INDEX(self._format.header_bytes))
        if self._format.unit_groups == CHUNK_GROUPS:
            start = self.builder.add(start, self.builder.mul(group, INDEX(self._format.group_bytes)))
        return self._place(start)

    def code(self, codes: Place, word: int, lane: int) -> Any:
        """Four codes of each output feature: those of a word of the group."""
        at = WORD_BYTES * lane
        if self._format.bits == 8:
            return self._words_at(codes, word * WIDTH * WORD_BYTES + at)
        both = self._words_at(codes, word % _HIGH_WORDS * WIDTH * WORD_BYTES + at)
        low = self._bits(both, _LOW_BITS * (word // _HIGH_WORDS), _LOW_BITS, 0)
        more = self._format.bits - _LOW_BITS
        if not more:
            return low
        # A byte has the bits of 8 // more codes.
        num_rows = GROUP_WORDS * more // 8
        above = self._words_at(codes, _LOW_BYTES + word % num_rows * WIDTH * WORD_BYTES + at)
        return self.builder.or_(low, self._bits(above, word // num_rows * more, more, _LOW_BITS))

    def common_scales(self, unit: Any, lane: int) -> Sequence[Any]:
        """What all groups of a chunk share, as float32."""
        if self._format.unit_groups < CHUNK_GROUPS:
            return ()
        header = self._place(unit)
        scale = self._halves(header, 2 * lane)
        if self._format.number == Q6_K:
            return (scale,)
        return scale, self.builder.fneg(self._halves(header, HALF_BYTES + 2 * lane))

    def scales(self, unit: Any, group: Any, lane: int, common: Sequence[Any]) -> list[tuple[Any, Any | None]]:
        """Scale and offset of a group as float32, or of each of its two halves; no offset where zero is a code."""
        header = self._place(unit)
        if self._format.number == Q6_K:
            return [(self._small(header, HALF_BYTES, part, group, lane, common[0]), None) for part in range(2)]
        if common:
            first = 2 * HALF_BYTES
            scale = self._small(header, first, 0, group, lane, common[0])
            return [(scale, self._small(header, first + CHUNK_GROUPS * WIDTH, 0, group, lane, common[1]))]
        scale = self._halves(header, 2 * lane)
        return [(scale, self._halves(header, HALF_BYTES + 2 * lane) if self._format.zero is None else None)]

    def fetch(self, unit: Any, group: Any) -> None:
        """Asks for a group that comes later. An address behind the last weight does no harm."""
        place = self.codes_of(unit, group)
        own = self._format.header_bytes // self._format.unit_groups
        for line in range(0, own + self._format.group_bytes, _LINE_BYTES):
            address = self.address(place, 0, INDEX(_AHEAD_BYTES + line), BYTE)
            # To read, into the second cache, data.
            self.call("llvm.prefetch.p0", VOID, address, WORD(0), WORD(2), WORD(1))

    def _place(self, address: Any) -> Place:
        return Place(self.builder.inttoptr(address, BYTE.as_pointer()), INDEX(0))

    def _words_at(self, place: Place, offset_bytes: int) -> Any:
        return self.load(place, 0, INDEX(offset_bytes), self.words)

    def _bits(self, words: Any, first: int, count: int, to: int) -> Any:
        """`count` bits of each byte, from bit `first` on, moved to bit `to`."""
        builder = self.builder
        if first > to:
            words = builder.lshr(words, self._all(first - to))
        elif first < to:
            words = builder.shl(words, self._all(to - first))
        return builder.and_(words, self._all(0x01010101 * (((1 << count) - 1) << to)))

    def _all(self, number: int) -> Any:
        return self.words([number] * self._lanes)

    def _halves(self, place: Place, offset_bytes: int) -> Any:
        """float16 as float32."""
        kind = ir.VectorType(ir.HalfType(), self._lanes)
        return self.builder.fpext(self.load(place, 0, INDEX(offset_bytes), kind), self.floats)

    def _small(self, header: Place, first: int, part: int, group: Any, lane: int, factor: Any) -> Any:
        """A group's whole numbers of 8 bits times a factor. Only those of Q6_K, two for each group, have signs."""
        is_q6, builder = self._format.number == Q6_K, self.builder
        row = builder.mul(group, INDEX(WIDTH * (2 if is_q6 else 1)))
        offset = builder.add(row, INDEX(first + part * WIDTH + lane))
        loaded = self.load(header, 0, offset, ir.VectorType(BYTE, self._lanes))
        wide = builder.sext(loaded, self.words) if is_q6 else builder.zext(loaded, self.words)
        return builder.fmul(factor, builder.sitofp(wide, self.floats))
