"""Writers of LLVM code: arrays, vectors, and the codes and scales of packed weights in registers.

The code takes whole arrays and indices, since a slice would lock its reference count.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from paceline.engine.cpu.kernels.quantized.packing import (
    CHUNK_GROUPS,
    GROUP_CODES,
    GROUP_WORDS,
    HALF_BYTES,
    Format,
)
from paceline.engine.cpu.kernels.tiles import WIDTH

INDEX, WORD, BYTE, FLOAT, VOID = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.FloatType(), ir.VoidType()
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class StridedPointer:
    """An address in an array, and the bytes from there to the next row."""

    start: Any
    stride_bytes: Any


@dataclass(frozen=True, slots=True)
class Strided:
    """An array of any number of dimensions."""

    builder: Any
    start: Any
    strides: Sequence[Any]

    def with_rows(self, num_bytes: int) -> "Strided":
        """Fixes the bytes of a row, so that addresses need no registers."""
        *outer, _, element = self.strides
        return Strided(self.builder, self.start, (*outer, INDEX(num_bytes), element))

    def at(self, *indices: Any) -> StridedPointer:
        """Returns the place of an element. Its rows are those of the last dimension but one."""
        start = self.start
        for stride, index in zip(self.strides, indices, strict=True):
            start = cgutils.pointer_add(self.builder, start, self.builder.mul(stride, index))
        return StridedPointer(start, self.strides[-2 if len(self.strides) > 1 else -1])


class Writer:
    """Writes operations on vectors of `lanes` words or floats."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.words, self.floats = ir.VectorType(WORD, lanes), ir.VectorType(FLOAT, lanes)
        self._lanes = lanes

    def address(self, pointer: StridedPointer, row: int, offset_bytes: Any, kind: Any) -> Any:
        offset = self.builder.add(self.builder.mul(pointer.stride_bytes, INDEX(row)), offset_bytes)
        return cgutils.pointer_add(self.builder, pointer.start, offset, kind.as_pointer())

    def load(self, pointer: StridedPointer, row: int, offset_bytes: Any, kind: Any) -> Any:
        return self.builder.load(self.address(pointer, row, offset_bytes, kind), align=1)

    def store(self, value: Any, pointer: StridedPointer, row: int, offset_bytes: Any) -> None:
        self.builder.store(value, self.address(pointer, row, offset_bytes, value.type), align=1)

    def broadcast(self, scalar: Any) -> Any:
        """Returns a vector with the scalar in all lanes."""
        kind = ir.VectorType(scalar.type, self._lanes)
        first = self.builder.insert_element(kind(ir.Undefined), scalar, WORD(0))
        return self.builder.shuffle_vector(first, kind(ir.Undefined), self.words([0] * self._lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """Returns a * b + c, rounded once."""
        return self.call(f"llvm.fma.v{self._lanes}f32", self.floats, a, b, c)

    def call(self, name: str, result: Any, *operands: Any) -> Any:
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), operands)

    def accumulate(self, count: Any, first: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """Returns the values after `count` passes, at least one, of values = step(index, values)."""
        builder = self.builder
        before, loop, after = builder.block, *map(builder.append_basic_block, ("loop", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        index, values = builder.phi(INDEX), [builder.phi(value.type) for value in first]
        grown = step(index, values)
        following, end = builder.add(index, INDEX(1)), builder.block
        pairs = ((index, INDEX(0), following), *zip(values, first, grown, strict=True))
        for phi, start, more in pairs:
            phi.add_incoming(start, before)
            phi.add_incoming(more, end)
        builder.cbranch(builder.icmp_signed("<", following, count), loop, after)
        builder.position_at_end(after)
        return grown

    def add_scaled(self, value: Any, total: Any, scale: Any, shared: Any, factor: Any, offset: Any | None) -> Any:
        """Adds a group's integer sum to a row's, with the same operations in the same order in every kernel.

        total: the sum of (code - zero) * number; scale and shared: the row's two `RoundedRows.scales`; factor and offset: the
        weights'.
        """
        builder = self.builder
        product = builder.fmul(builder.sitofp(total, self.floats), self.broadcast(scale))
        value = self.fma(product, factor, value)
        return value if offset is None else self.fma(self.broadcast(shared), offset, value)


def indexed_code(write: Callable[..., None], counts: Sequence[int], num_indices: int, *arrays: Any) -> Any:
    """Returns a Numba intrinsic's signature and code, for a count, indices and arrays.

    `write(builder, count, indices, *arrays)` writes the code for each of `counts`, so that LLVM keeps all sums in
    registers. Another count runs the code of the next larger one.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given, indices, values = args[0], args[1 : 1 + num_indices], args[1 + num_indices :]
        strided = []
        for kind, value in zip(arrays, values, strict=True):
            array = context.make_array(kind)(context, builder, value)
            start = builder.bitcast(array.data, BYTE.as_pointer())
            strided.append(Strided(builder, start, cgutils.unpack_tuple(builder, array.strides)))
        after = builder.append_basic_block("after")
        switch = builder.switch(given, after)
        for smaller, count in pairwise((0, *counts)):
            block = builder.append_basic_block(f"count_{count}")
            for each in range(smaller + 1, count + 1):
                switch.add_case(INDEX(each), block)
            builder.position_at_end(block)
            write(builder, count, indices, *strided)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(types.intp, *[types.intp] * num_indices, *arrays), generate


def format_code(number: Any, code: Any) -> Any:
    """Prepends a format's number, a literal type, to an intrinsic's arguments."""
    signature, generate = code

    def generate_for_format(context: Any, builder: Any, _: Any, args: Any) -> Any:
        return generate(context, builder, signature, args[1:])

    return types.void(number, *signature.args), generate_for_format


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
        """Returns the address of the unit that has the group, in the chunk at this address."""
        if self._format.unit_groups == CHUNK_GROUPS:
            return chunk
        return self.builder.add(chunk, self.builder.mul(group, INDEX(self._format.unit_bytes)))

    def codes_of(self, unit: Any, group: Any) -> StridedPointer:
        """Where a group's codes are. group: its number in the chunk."""
        start = self.builder.add(unit, INDEX(self._format.header_bytes))
        if self._format.unit_groups == CHUNK_GROUPS:
            start = self.builder.add(start, self.builder.mul(group, INDEX(self._format.group_bytes)))
        return self._pointer(start)

    def code(self, codes: StridedPointer, word: int, lane: int) -> Any:
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
        """Returns the factors that all groups of a chunk share, as float32."""
        if self._format.unit_groups < CHUNK_GROUPS:
            return ()
        header = self._pointer(unit)
        scale = self._halves(header, 2 * lane)
        if self._format.zero is not None:
            return (scale,)
        return scale, self.builder.fneg(self._halves(header, HALF_BYTES + 2 * lane))

    def scales(self, unit: Any, group: Any, lane: int, common: Sequence[Any]) -> list[tuple[Any, Any | None]]:
        """Returns a group's scale and offset as float32, or those of its halves; no offset if the format has a zero."""
        header = self._pointer(unit)
        if (num_parts := self._format.scales_per_group) > 1:
            return [(self._small(header, HALF_BYTES, part, group, lane, common[0]), None) for part in range(num_parts)]
        if common:
            first = 2 * HALF_BYTES
            scale = self._small(header, first, 0, group, lane, common[0])
            return [(scale, self._small(header, first + CHUNK_GROUPS * WIDTH, 0, group, lane, common[1]))]
        scale = self._halves(header, 2 * lane)
        return [(scale, self._halves(header, HALF_BYTES + 2 * lane) if self._format.zero is None else None)]

    def fetch(self, unit: Any, group: Any) -> None:
        """Prefetches a later group. Reading past the last weight is harmless."""
        pointer = self.codes_of(unit, group)
        own = self._format.header_bytes // self._format.unit_groups
        for line in range(0, own + self._format.group_bytes, _LINE_BYTES):
            address = self.address(pointer, 0, INDEX(_AHEAD_BYTES + line), BYTE)
            # To read, into the second cache, data.
            self.call("llvm.prefetch.p0", VOID, address, WORD(0), WORD(2), WORD(1))

    def _pointer(self, address: Any) -> StridedPointer:
        return StridedPointer(self.builder.inttoptr(address, BYTE.as_pointer()), INDEX(0))

    def _words_at(self, pointer: StridedPointer, offset_bytes: int) -> Any:
        return self.load(pointer, 0, INDEX(offset_bytes), self.words)

    def _bits(self, words: Any, first: int, count: int, to: int) -> Any:
        """Moves `count` bits of each byte from bit `first` to bit `to`."""
        builder = self.builder
        if first > to:
            words = builder.lshr(words, self._all(first - to))
        elif first < to:
            words = builder.shl(words, self._all(to - first))
        return builder.and_(words, self._all(0x01010101 * (((1 << count) - 1) << to)))

    def _all(self, number: int) -> Any:
        return self.words([number] * self._lanes)

    def _halves(self, pointer: StridedPointer, offset_bytes: int) -> Any:
        kind = ir.VectorType(ir.HalfType(), self._lanes)
        return self.builder.fpext(self.load(pointer, 0, INDEX(offset_bytes), kind), self.floats)

    def _small(self, header: StridedPointer, first: int, part: int, group: Any, lane: int, factor: Any) -> Any:
        """Returns a group's 8-bit integers times a factor. Several for a group are signed."""
        num_parts, builder = self._format.scales_per_group, self.builder
        row = builder.mul(group, INDEX(WIDTH * num_parts))
        offset = builder.add(row, INDEX(first + part * WIDTH + lane))
        loaded = self.load(header, 0, offset, ir.VectorType(BYTE, self._lanes))
        wide = builder.sext(loaded, self.words) if num_parts > 1 else builder.zext(loaded, self.words)
        return builder.fmul(factor, builder.sitofp(wide, self.floats))
