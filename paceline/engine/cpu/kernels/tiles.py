"""Products of a few rows with a tile of weights, in LLVM code that keeps all sums in registers.

A word is 32 bits of a row: two bfloat16 input features, or four int8. An instruction multiplies a word with those of 16
output features. Each sum adds its words in order, so the product is batch invariant.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import memory
from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.scalars import compiled

# Output features of one instruction.
LANES = 16
# Instructions that use the same word of a row.
BLOCKS = 2
# Output features of a tile.
WIDTH = LANES * BLOCKS
# Rows that share the weights in registers: the sums of 14 rows and 2 blocks take 28 of the 32 registers.
TILE_ROWS = 14
# Rows of a tile if there are more rows than one tile takes: more of them and a tile of weights do not fit into the first
# cache.
MANY_TILE_ROWS = 9

INDEX = ir.IntType(64)
WORD = ir.IntType(32)
WORDS = ir.VectorType(WORD, LANES)
FLOATS = ir.VectorType(ir.FloatType(), LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_WORD_BYTES, _VECTOR_BYTES = 4, 64
# Weights are fetched this far ahead. The processor's own prefetching ends at each page, and the sums of many rows leave
# no instructions in flight to wait for memory: without this a forward pass of nine rows takes a quarter longer.
_AHEAD_BYTES = 8192
# Rows that share a pointer, by addresses of the form pointer + {0, 1, 2} * stride. LLVM's own choice of addresses for
# eleven rows takes 1.6 times as long.
_ROWS_PER_POINTER = 3


class BFloat(ir.Type):
    """LLVM's bfloat type, which llvmlite lacks."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


_ROUNDED = ir.VectorType(BFloat(), LANES)


@dataclass(frozen=True, slots=True)
class DotInstruction:
    """An instruction that computes sums + weights * word in each lane."""

    name: str
    sums: ir.VectorType
    operands: ir.VectorType
    # The processor feature that has the instruction.
    feature: str

    @property
    def is_available(self) -> bool:
        return has_features(self.feature)

    def declare(self, module: Any) -> Any:
        kind = ir.FunctionType(self.sums, [self.sums, self.operands, self.operands])
        return cgutils.get_or_insert_function(module, kind, self.name)


@dataclass(frozen=True, slots=True)
class Rows:
    """An array's rows: the first row's address, bytes from row to row, and elements of a row."""

    start: Any
    stride_bytes: Any
    length: Any
    dtype: Any


class _LoopValue:
    """A value that changes between passes of a loop."""

    def __init__(self, builder: Any, first: Any, before: Any) -> None:
        """`before` is the block that precedes the loop, and `first` the value there."""
        self.value = builder.phi(first.type)
        self.value.add_incoming(first, before)

    def becomes(self, value: Any, loop: Any) -> None:
        self.value.add_incoming(value, loop)


class TileWriter:
    """Writes the code for `num_rows` rows of words."""

    def __init__(self, builder: Any, num_rows: int) -> None:
        self.builder = builder
        self._num_rows = num_rows

    def sum_products(self, dot: DotInstruction, x: Rows, weights: Rows) -> list[list[Any]]:
        """Returns x weights^T as [num_rows][BLOCKS] vectors. weights: a row of WIDTH words for each word of x."""
        builder = self.builder
        pointers = [self._address(x, row) for row in range(0, self._num_rows, _ROWS_PER_POINTER)]
        before, loop, after = builder.block, *map(builder.append_basic_block, ("words", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        index = _LoopValue(builder, INDEX(0), before)
        words = [_LoopValue(builder, pointer, before) for pointer in pointers]
        here = _LoopValue(builder, weights.start, before)
        sums = [
            [_LoopValue(builder, dot.sums([0] * LANES), before) for _ in range(BLOCKS)] for _ in range(self._num_rows)
        ]
        self._prefetch(here.value)
        grown = self._add_products(dot, [each.value for each in words], x.stride_bytes, here.value, sums)
        following = builder.add(index.value, INDEX(1))
        index.becomes(following, loop)
        here.becomes(cgutils.pointer_add(builder, here.value, weights.stride_bytes), loop)
        for word in words:
            word.becomes(cgutils.pointer_add(builder, word.value, INDEX(_WORD_BYTES)), loop)
        for total, more in zip(chain(*sums), chain(*grown), strict=True):
            total.becomes(more, loop)
        builder.cbranch(builder.icmp_signed("<", following, x.length), loop, after)
        builder.position_at_end(after)
        return grown

    def _add_products(
        self, dot: DotInstruction, words: list[Any], stride_bytes: Any, weights: Any, sums: list[list["_LoopValue"]]
    ) -> list[list[Any]]:
        """Adds the products of one word of each row to the sums: [num_rows][BLOCKS].

        words: the addresses of every third row's word; weights: the address of its WIDTH words.
        """
        builder, call = self.builder, dot.declare(self.builder.module)
        vectors = [
            builder.bitcast(self._load_at(weights, INDEX(block * _VECTOR_BYTES), WORDS), dot.operands)
            for block in range(BLOCKS)
        ]
        grown = []
        for row, of_row in enumerate(sums):
            offset = builder.mul(stride_bytes, INDEX(row % _ROWS_PER_POINTER))
            word = self._load_at(words[row // _ROWS_PER_POINTER], offset, WORD)
            shared = builder.bitcast(self.broadcast(word, WORDS), dot.operands)
            pairs = zip(of_row, vectors, strict=True)
            grown.append([builder.call(call, [total.value, vector, shared]) for total, vector in pairs])
        return grown

    def _prefetch(self, weights: Any) -> None:
        """Prefetches the weights _AHEAD_BYTES later. Reading past the last weight is harmless."""
        builder, pointer = self.builder, weights.type
        kind = ir.FunctionType(ir.VoidType(), [pointer, WORD, WORD, WORD])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        for block in range(BLOCKS):
            address = cgutils.pointer_add(builder, weights, INDEX(_AHEAD_BYTES + block * _VECTOR_BYTES), pointer)
            # To read, into the first cache, data.
            builder.call(prefetch, [address, WORD(0), WORD(3), WORD(1)])

    def finish(self, products: list[list[Any]], bias: Rows, residual: Rows, out: Rows) -> None:
        """Writes out = products + bias + residual, rounded once.

        products: [num_rows][BLOCKS] vectors of float32; bias: one row of float32.
        """
        builder = self.builder
        for row, of_row in enumerate(products):
            for block, product in enumerate(of_row):
                biased = builder.fadd(product, self.load_floats(bias, 0, block))
                finished = builder.fadd(biased, self.load_floats(residual, row, block))
                if out.dtype == types.uint16:
                    # Rounds to nearest, ties to even, with one instruction.
                    finished = builder.fptrunc(finished, _ROUNDED)
                offset = self._offset(out, row, INDEX(block * LANES * out.dtype.bitwidth // 8))
                address = cgutils.pointer_add(builder, out.start, offset, finished.type.as_pointer())
                builder.store(finished, address, align=2)

    def load_products(self, sums: Rows) -> list[list[Any]]:
        """Loads sums as [num_rows][BLOCKS] vectors of float32 for `finish`."""
        return [[self.load_floats(sums, row, block) for block in range(BLOCKS)] for row in range(self._num_rows)]

    def load_floats(self, rows: Rows, row: int, block: int) -> Any:
        """Loads the LANES elements of a row's block as float32."""
        builder = self.builder
        offset = self._offset(rows, row, INDEX(block * LANES * rows.dtype.bitwidth // 8))
        if rows.dtype == types.float32:
            return self._load(rows, offset, FLOATS)
        halves = self._load(rows, offset, _HALVES)
        return builder.bitcast(builder.shl(builder.zext(halves, WORDS), WORDS([16] * LANES)), FLOATS)

    def load_scalar(self, rows: Rows, row: int, kind: Any) -> Any:
        return self._load(rows, self._offset(rows, row, INDEX(0)), kind)

    def broadcast(self, scalar: Any, kind: Any) -> Any:
        """Returns a vector with the scalar in all lanes."""
        first = self.builder.insert_element(kind(ir.Undefined), scalar, WORD(0))
        return self.builder.shuffle_vector(first, kind(ir.Undefined), WORDS([0] * LANES))

    def _offset(self, rows: Rows, row: int, in_row: Any) -> Any:
        return self.builder.add(self.builder.mul(rows.stride_bytes, INDEX(row)), in_row)

    def _address(self, rows: Rows, row: int) -> Any:
        return cgutils.pointer_add(self.builder, rows.start, self._offset(rows, row, INDEX(0)))

    def _load(self, rows: Rows, offset_bytes: Any, kind: Any) -> Any:
        return self._load_at(rows.start, offset_bytes, kind)

    def _load_at(self, address: Any, offset_bytes: Any, kind: Any) -> Any:
        return self.builder.load(cgutils.pointer_add(self.builder, address, offset_bytes, kind.as_pointer()), align=2)


def tile_code(write: Callable[..., None], *arrays: Any, parts_per_row: int = 1) -> Any:
    """Returns a Numba intrinsic's signature and code, for up to TILE_ROWS / parts_per_row rows.

    A row has `parts_per_row` rows of words; `write(tile_writer, *rows)` writes the code for one number of rows.
    """

    def write_tile(builder: Any, num_rows: int, *rows: Rows) -> None:
        write(TileWriter(builder, num_rows * parts_per_row), *rows)

    return counted_code(write_tile, TILE_ROWS // parts_per_row, *arrays)


def counted_code(write: Callable[..., None], most: int, *arrays: Any) -> Any:
    """Returns a Numba intrinsic's signature and code, for a count from 1 to `most` and these arrays.

    `write(builder, count, *rows)` writes each count's own code, so that LLVM keeps all sums in registers.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        given, *values = args
        rows = []
        for kind, value in zip(arrays, values, strict=True):
            array = context.make_array(kind)(context, builder, value)
            strides, shape = (cgutils.unpack_tuple(builder, each) for each in (array.strides, array.shape))
            rows.append(Rows(array.data, strides[0], shape[-1], kind.dtype))
        after = builder.append_basic_block("after")
        switch = builder.switch(given, after)
        for count in range(1, most + 1):
            switch.add_case(INDEX(count), block := builder.append_basic_block(f"count_{count}"))
            builder.position_at_end(block)
            write(builder, count, *rows)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(types.intp, *arrays), generate


@compiled()
def rows_at_once(num_rows: int, most: int, most_of_many: int) -> int:
    """Returns how many rows a tile takes: all up to `most`, else equal parts of at most `most_of_many`."""
    if num_rows <= most:
        return max(1, num_rows)
    num_tiles = -(-num_rows // most_of_many)
    return -(-num_rows // num_tiles)


def pack_words(words: Array) -> Array:
    """Packs words: [out_features, num_words] uint32 as [num_tiles, num_words, WIDTH], padded with 0."""
    tiles = np.pad(words, ((0, -words.shape[0] % WIDTH), (0, 0))).reshape(-1, WIDTH, words.shape[1])
    return memory.weights.keep(tiles.transpose(0, 2, 1))


def pad_features(rows: Array) -> Array:
    """Pads rows: [..., out_features] with 0 to whole tiles."""
    missing = -rows.shape[-1] % WIDTH
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)]) if missing else rows


def no_residual(out_features: int, dtype: Any) -> Array:
    """Returns zeros: [TILE_ROWS, padded out_features], a residual for any number of rows."""
    return pad_features(np.zeros((TILE_ROWS, out_features), dtype))
