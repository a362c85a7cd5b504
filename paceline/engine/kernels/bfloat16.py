"""Products with bfloat16 weights by the processor's own dot product of pairs (vdpbf16ps, of AVX512-BF16).

The instruction adds two bfloat16 products to each of 16 float32 sums: 16 output features, two input features a step.
A sum takes its input features in one order, whatever rows are beside it. For few rows this reads weights nearly
twice as fast as oneDNN does, for many it is as fast.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic
from torch.nn import functional

from paceline.engine.kernels.scalars import Array, compiled

# Output features of one instruction, and the instructions that share a row's pair of input features.
LANES = 16
BLOCKS = 2
WIDTH = LANES * BLOCKS
# Rows that share the weights in registers: 8 rows of 2 blocks are 16 of the 32 registers.
TILE_ROWS = 8

_INDEX = ir.IntType(64)
_PAIR = ir.IntType(32)
_PAIRS = ir.VectorType(_PAIR, LANES)
_SUMS = ir.VectorType(ir.FloatType(), LANES)
_HALVES = ir.VectorType(ir.IntType(16), LANES)
_PAIR_BYTES, _HALF_BYTES, _VECTOR_BYTES = 4, 2, 64


class _BFloat(ir.Type):
    """The element type that the instruction's signature names, and llvmlite does not know."""

    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash("bfloat")


_ROUNDED = ir.VectorType(_BFloat(), LANES)
_ELEMENTS = ir.VectorType(_BFloat(), 2 * LANES)
_DOT = ir.FunctionType(_SUMS, [_SUMS, _ELEMENTS, _ELEMENTS])


def is_available() -> bool:
    """Whether this processor has the instruction."""
    return bool(llvmlite.binding.get_host_cpu_features().get("avx512bf16"))


def pack_bfloat16(weight: torch.Tensor) -> Array:
    """weight: [out_features, in_features], in_features even.

    [out_features / WIDTH, in_features / 2, WIDTH] uint32, pairs of input features, padded with 0 to whole tiles.
    """
    pairs = functional.pad(weight.contiguous().view(torch.int32), (0, 0, 0, -weight.shape[0] % WIDTH))
    tiles = pairs.view(-1, WIDTH, pairs.shape[1]).transpose(1, 2).contiguous()
    packed: Array = tiles.numpy().view(np.uint32)
    return packed


def pad_features(rows: Array) -> Array:
    """rows: [..., out_features], padded with 0 to whole tiles."""
    missing = -rows.shape[-1] % WIDTH
    return np.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)]) if missing else rows


def multiply_bfloat16(x: Array, packed: Array, bias: Array, residual: Array) -> Array:
    """x packed^T + bias + residual, rounded once. x: [num_rows, in_features]; bias: [padded out_features] float32;
    residual: [num_rows, padded out_features], or [TILE_ROWS, padded out_features] for every tile of rows.

    Returns [num_rows, padded out_features], bfloat16.
    """
    out = np.empty((x.shape[0], bias.size), np.uint16)
    _multiply_bfloat16(x.view(np.uint32), packed, bias, residual, out)
    return out


@dataclass(frozen=True, slots=True)
class _Rows:
    """Where an array's rows are: the address of the first, and the bytes from each to the next."""

    start: Any
    stride_bytes: Any


class _Dot:
    """Writes, for LLVM, the product of `num_rows` rows with a tile of weights. All sums stay in registers."""

    def __init__(self, builder: Any, num_rows: int) -> None:
        self._builder = builder
        self._num_rows = num_rows
        self._dot = cgutils.get_or_insert_function(builder.module, _DOT, "llvm.x86.avx512bf16.dpbf16ps.512")

    def write(self, depth: Any, x: _Rows, weights: _Rows, bias: _Rows, residual: _Rows, out: _Rows) -> None:
        """The loop over `depth` pairs, and what is added behind it."""
        sums = self._sum_pairs(depth, x, weights)
        builder = self._builder
        for row, of_row in enumerate(sums):
            for block, total in enumerate(of_row):
                here = _INDEX(block * LANES * _HALF_BYTES)
                halves = self._load(residual, row, here, _HALVES)
                widened = builder.shl(builder.zext(halves, _PAIRS), _PAIRS([16] * LANES))
                biased = builder.fadd(total, self._load(bias, 0, _INDEX(block * _VECTOR_BYTES), _SUMS))
                finished = builder.fadd(biased, builder.bitcast(widened, _SUMS))
                # To the nearest, ties to even: one instruction.
                rounded = builder.fptrunc(finished, _ROUNDED)
                builder.store(rounded, self._at(out, row, here, _ROUNDED), align=2)

    def _sum_pairs(self, depth: Any, x: _Rows, weights: _Rows) -> list[list[Any]]:
        builder = self._builder
        before, loop, after = builder.block, *map(builder.append_basic_block, ("pairs", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        pair = builder.phi(_INDEX)
        sums = [[builder.phi(_SUMS) for _ in range(BLOCKS)] for _ in range(self._num_rows)]
        tile = builder.mul(pair, weights.stride_bytes)
        vectors = [
            self._load(weights, 0, builder.add(tile, _INDEX(block * _VECTOR_BYTES)), _PAIRS) for block in range(BLOCKS)
        ]
        grown = []
        for row, of_row in enumerate(sums):
            one = self._load(x, row, builder.mul(pair, _INDEX(_PAIR_BYTES)), _PAIR)
            grown.append([self._add(total, vector, one) for total, vector in zip(of_row, vectors, strict=True)])
        next_pair = builder.add(pair, _INDEX(1))
        pair.add_incoming(_INDEX(0), before)
        pair.add_incoming(next_pair, loop)
        for total, more in zip(chain(*sums), chain(*grown), strict=True):
            total.add_incoming(_SUMS([0.0] * LANES), before)
            total.add_incoming(more, loop)
        builder.cbranch(builder.icmp_signed("<", next_pair, depth), loop, after)
        builder.position_at_end(after)
        return grown

    def _add(self, total: Any, vector: Any, one: Any) -> Any:
        """total + vector * one, `one` a pair that all lanes share."""
        builder = self._builder
        first = builder.insert_element(_PAIRS(ir.Undefined), one, _PAIR(0))
        shared = builder.shuffle_vector(first, _PAIRS(ir.Undefined), _PAIRS([0] * LANES))
        return builder.call(self._dot, [total, builder.bitcast(vector, _ELEMENTS), builder.bitcast(shared, _ELEMENTS)])

    def _load(self, rows: _Rows, row: int, offset_bytes: Any, kind: Any) -> Any:
        return self._builder.load(self._at(rows, row, offset_bytes, kind), align=2)

    def _at(self, rows: _Rows, row: int, offset_bytes: Any, kind: Any) -> Any:
        offset = self._builder.add(self._builder.mul(rows.stride_bytes, _INDEX(row)), offset_bytes)
        return cgutils.pointer_add(self._builder, rows.start, offset, kind.as_pointer())


def _type_dot_tile(typing_context: Any, num_rows: Any, x: Any, weights: Any, bias: Any, residual: Any, out: Any) -> Any:
    """out = x weights^T + bias + residual, for at most TILE_ROWS rows of a tile.

    x: [.., depth] and weights: [depth, WIDTH], pairs as uint32; bias: [>= WIDTH]; the others [.., >= WIDTH].
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        count, *values = args
        arrays = [
            context.make_array(kind)(context, builder, value)
            for kind, value in zip(signature.args[1:], values, strict=True)
        ]
        depth = cgutils.unpack_tuple(builder, arrays[0].shape)[1]
        rows = [_Rows(array.data, cgutils.unpack_tuple(builder, array.strides)[0]) for array in arrays]
        # A loop for each count, so that the sums have registers of their own.
        after = builder.append_basic_block("after")
        switch = builder.switch(count, after)
        for most in range(1, TILE_ROWS + 1):
            switch.add_case(_INDEX(most), block := builder.append_basic_block(f"rows_{most}"))
            builder.position_at_end(block)
            _Dot(builder, most).write(depth, *rows)
            builder.branch(after)
        builder.position_at_end(after)
        return context.get_dummy_value()

    return types.void(types.intp, x, weights, bias, residual, out), generate


_dot_tile: Callable[..., None] = intrinsic(_type_dot_tile)


@compiled(parallel=True)
def _multiply_bfloat16(x: Array, packed: Array, bias: Array, residual: Array, out: Array) -> None:
    num_rows = x.shape[0]
    has_residual = residual.shape[0] == num_rows
    for tile in prange(packed.shape[0]):
        start = tile * WIDTH
        for first in range(0, num_rows, TILE_ROWS):
            _dot_tile(
                min(TILE_ROWS, num_rows - first), x[first:], packed[tile], bias[start:],
                residual[first * has_residual :, start:], out[first:, start:],
            )  # fmt: skip
