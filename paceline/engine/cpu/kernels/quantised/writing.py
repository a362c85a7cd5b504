"""What the kernels of this package share when they write LLVM code.

The code takes whole arrays and indices: a slice of an array would cost a lock on its counter of references.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

INDEX, WORD, BYTE, FLOAT, VOID = ir.IntType(64), ir.IntType(32), ir.IntType(8), ir.FloatType(), ir.VoidType()
WORD_BYTES = 4


@dataclass(frozen=True, slots=True)
class Place:
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
        """The same array, whose rows have so many bytes: known to the compiler, addresses need no registers."""
        *outer, _, element = self.strides
        return Strided(self.builder, self.start, (*outer, INDEX(num_bytes), element))

    def at(self, *indices: Any) -> Place:
        """The place of these indices, an index for each dimension; its rows are those of the last but one."""
        start = self.start
        for stride, index in zip(self.strides, indices, strict=True):
            start = cgutils.pointer_add(self.builder, start, self.builder.mul(stride, index))
        return Place(start, self.strides[-2 if len(self.strides) > 1 else -1])


class Writer:
    """Writes operations on vectors of `lanes` words or floats."""

    def __init__(self, builder: Any, lanes: int) -> None:
        self.builder = builder
        self.words, self.floats = ir.VectorType(WORD, lanes), ir.VectorType(FLOAT, lanes)
        self._lanes = lanes

    def address(self, place: Place, row: int, offset_bytes: Any, kind: Any) -> Any:
        offset = self.builder.add(self.builder.mul(place.stride_bytes, INDEX(row)), offset_bytes)
        return cgutils.pointer_add(self.builder, place.start, offset, kind.as_pointer())

    def load(self, place: Place, row: int, offset_bytes: Any, kind: Any) -> Any:
        return self.builder.load(self.address(place, row, offset_bytes, kind), align=1)

    def store(self, value: Any, place: Place, row: int, offset_bytes: Any) -> None:
        self.builder.store(value, self.address(place, row, offset_bytes, value.type), align=1)

    def broadcast(self, scalar: Any) -> Any:
        """A vector with the scalar in all lanes."""
        kind = ir.VectorType(scalar.type, self._lanes)
        first = self.builder.insert_element(kind(ir.Undefined), scalar, WORD(0))
        return self.builder.shuffle_vector(first, kind(ir.Undefined), self.words([0] * self._lanes))

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        """a * b + c, rounded once."""
        return self.call(f"llvm.fma.v{self._lanes}f32", self.floats, a, b, c)

    def call(self, name: str, result: Any, *operands: Any) -> Any:
        kind = ir.FunctionType(result, [operand.type for operand in operands])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), operands)

    def accumulate(self, count: Any, first: list[Any], step: Callable[[Any, list[Any]], list[Any]]) -> list[Any]:
        """The values after `count` passes, at least one, of values = step(index, values)."""
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
        """A group's whole numbers added to a row's sum: the same operations, in the same order, for every kernel.

        total: the sum of codes * numbers, with each code's zero; scale and shared: the row's two `RoundedRows.scales`;
        factor and offset: the weights'.
        """
        builder = self.builder
        product = builder.fmul(builder.sitofp(total, self.floats), self.broadcast(scale))
        value = self.fma(product, factor, value)
        return value if offset is None else self.fma(self.broadcast(shared), offset, value)


def indexed_code(write: Callable[..., None], counts: Sequence[int], num_indices: int, *arrays: Any) -> Any:
    """The signature and the code of a Numba intrinsic that takes a count, indices, and arrays.

    `write(builder, count, indices, *arrays)` writes the code for one of `counts`, so that LLVM can keep all sums in
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
