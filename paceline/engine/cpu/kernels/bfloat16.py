"""Products with bfloat16 weights: vdpbf16ps (AVX512-BF16), and tdpbf16ps on the matrix unit (AMX).

For few rows vdpbf16ps is faster than oneDNN. The unit multiplies 16 rows in the time of one.
Each sum adds its words in one fixed order, so both are batch invariant.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.cpu.kernels.tiles import (
    FLOATS,
    INDEX,
    LANES,
    MANY_TILE_ROWS,
    TILE_ROWS,
    WIDTH,
    BFloat,
    DotInstruction,
    Rows,
    TileWriter,
    counted_code,
    pack_words,
    rows_at_once,
    tile_code,
)
from paceline.engine.threads import kernel_workers

DOT = DotInstruction(
    "llvm.x86.avx512bf16.dpbf16ps.512", sums=FLOATS, operands=ir.VectorType(BFloat(), 2 * LANES), feature="avx512bf16"
)


def pack_bfloat16(weight: torch.Tensor) -> Array:
    """Packs weight: [out_features, in_features] as [num_tiles, in_features / 2, WIDTH] pairs. in_features is even."""
    return pack_words(weight.contiguous().view(torch.int32).numpy().view(np.uint32))


def unpack_rows(packed: Array, ids: Array) -> Array:
    """Returns rows of packed weights: ids: [num_rows] -> [num_rows, in_features] bfloat16."""
    pairs = packed[ids // WIDTH, :, ids % WIDTH]  # [num_rows, in_features / 2]
    return np.ascontiguousarray(pairs).view(np.uint16)


class Bfloat16Weights(NamedTuple):
    packed: Array  # [num_tiles, in_features / 2, WIDTH] pairs
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`
    kernel_at: int = 0  # see `decoder.with_kernel`


def _write(tile: TileWriter, x: Rows, weights: Rows, bias: Rows, residual: Rows, out: Rows) -> None:
    tile.finish(tile.sum_products(DOT, x, weights), bias, residual, out)


def _type_dot(typing_context: Any, num_rows: Any, x: Any, weights: Any, bias: Any, residual: Any, out: Any) -> Any:
    return tile_code(_write, x, weights, bias, residual, out)


_dot: Callable[..., None] = intrinsic(_type_dot)


@compiled(parallel=True)
def _multiply_bfloat16(x: Array, packed: Array, bias: Array, residual: Array, out: Array) -> None:
    num_rows = x.shape[0]
    at_once = rows_at_once(num_rows, TILE_ROWS, MANY_TILE_ROWS)
    has_residual = residual.shape[0] == num_rows
    for tile in prange(packed.shape[0]):
        start = tile * WIDTH
        for first in range(0, num_rows, at_once):
            _dot(
                min(at_once, num_rows - first), x[first:], packed[tile], bias[start:],
                residual[first * has_residual :, start:], out[first:, start:],
            )  # fmt: skip


@compiled()
def multiply_bfloat16(x: Array, weights: Bfloat16Weights, residual: Array) -> Array:
    """Computes x weights^T + bias + residual, rounded once: [num_rows, padded out_features] bfloat16.

    x: [num_rows, in_features] bfloat16; residual: [num_rows, padded out_features] bfloat16, or the weights' no_residual.
    """
    out = np.empty((x.shape[0], weights.bias.size), np.uint16)
    _multiply_bfloat16(x.view(np.uint32), weights.packed, weights.bias, residual, out)
    return out


# A tile register: 16 rows of 64 bytes.
UNIT_ROWS = 16
# Rows that are finished at once, from sums in memory: it divides UNIT_ROWS.
FINISHED_ROWS = 8
ROW_BYTES = 64
# Input features, and pairs of them, that one instruction takes.
DEPTH = 32
_DEPTH_PAIRS = 16
_PAIR_BYTES = 4
# Weights that one step of the loop reads.
_STEP_BYTES = _DEPTH_PAIRS * WIDTH * _PAIR_BYTES
# A cache line.
_LINE_BYTES = 64
# Registers 0 to 3 hold the sums of 2 * 16 rows with 2 * 16 output features, 4 and 5 the rows, 6 and 7 the weights.
MOST_UNITS = 2
_BLOCKS = 2
_ROW_REGISTERS, _WEIGHT_REGISTERS = 4, 6
# The unit's configuration: palette 1, and all eight registers with full size.
CONFIG = np.zeros(64, np.uint8)
CONFIG[0] = 1
CONFIG[16:32:2] = ROW_BYTES
CONFIG[48:56] = UNIT_ROWS

_BYTE, _VOID = ir.IntType(8), ir.VoidType()


def has_matrix_unit() -> bool:
    """Whether the processor has the unit and the system lets this process use it."""
    return has_features("amx-bf16") and torch.cpu._is_amx_tile_supported() and torch.cpu._init_amx()


def pack_for_matrix_unit(weight: torch.Tensor) -> Array:
    """Packs like `pack_bfloat16`, and requests the unit from the system."""
    torch.cpu._init_amx()
    return pack_bfloat16(weight)


class MatrixUnitWeights(NamedTuple):
    packed: Array  # from `pack_for_matrix_unit`
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`
    kernel_at: int = 0  # see `decoder.with_kernel`


class _UnitWriter:
    """Writes the code for `num_units` times 16 rows."""

    def __init__(self, builder: Any, num_units: int) -> None:
        self._builder = builder
        self._num_units = num_units

    def sum_products(self, x: Rows, weights: Rows, sums: Rows) -> None:
        """Writes sums = x weights^T. x: rows of pairs; weights: a row of WIDTH pairs for each pair of x."""
        builder = self._builder
        for register in range(self._num_units * _BLOCKS):
            self._call("tilezero", register)
        before, loop, after = builder.block, *map(builder.append_basic_block, ("pairs", "done"))
        builder.branch(loop)
        builder.position_at_end(loop)
        pair = builder.phi(INDEX)
        self._prefetch(weights, builder.mul(pair, weights.stride_bytes))
        for block in range(_BLOCKS):
            offset = builder.add(builder.mul(pair, weights.stride_bytes), INDEX(block * ROW_BYTES))
            self._call("tileloadd64", _WEIGHT_REGISTERS + block, self._at(weights, offset), weights.stride_bytes)
        for unit in range(self._num_units):
            offset = builder.add(self._rows_before(x, unit), builder.mul(pair, INDEX(_PAIR_BYTES)))
            self._call("tileloadd64", _ROW_REGISTERS + unit, self._at(x, offset), x.stride_bytes)
            for block in range(_BLOCKS):
                registers = unit * _BLOCKS + block, _ROW_REGISTERS + unit, _WEIGHT_REGISTERS + block
                self._call("tdpbf16ps", *registers)
        following = builder.add(pair, INDEX(_DEPTH_PAIRS))
        pair.add_incoming(INDEX(0), before)
        pair.add_incoming(following, loop)
        builder.cbranch(builder.icmp_signed("<", following, x.length), loop, after)
        builder.position_at_end(after)
        for unit in range(self._num_units):
            for block in range(_BLOCKS):
                offset = builder.add(self._rows_before(sums, unit), INDEX(block * ROW_BYTES))
                self._call("tilestored64", unit * _BLOCKS + block, self._at(sums, offset), sums.stride_bytes)

    def _prefetch(self, weights: Rows, here: Any) -> None:
        """Prefetches the next step's weights, or the next tile's."""
        number = ir.IntType(32)
        kind = ir.FunctionType(_VOID, [_BYTE.as_pointer(), number, number, number])
        function = cgutils.get_or_insert_function(self._builder.module, kind, "llvm.prefetch.p0")
        for line in range(_STEP_BYTES, 2 * _STEP_BYTES, _LINE_BYTES):
            address = self._at(weights, self._builder.add(here, INDEX(line)))
            # 0: for reading; 3: into the nearest cache; 1: data.
            self._builder.call(function, [address, number(0), number(3), number(1)])

    def _rows_before(self, rows: Rows, unit: int) -> Any:
        """Returns the byte offset of a unit's first row."""
        return self._builder.mul(rows.stride_bytes, INDEX(unit * UNIT_ROWS))

    def _at(self, rows: Rows, offset_bytes: Any) -> Any:
        return cgutils.pointer_add(self._builder, rows.start, offset_bytes, _BYTE.as_pointer())

    def _call(self, name: str, *operands: Any) -> None:
        """Calls an instruction. An integer operand is a register's number."""
        values = [_BYTE(operand) if isinstance(operand, int) else operand for operand in operands]
        kind = ir.FunctionType(_VOID, [value.type for value in values])
        self._builder.call(cgutils.get_or_insert_function(self._builder.module, kind, f"llvm.x86.{name}"), values)


def _write_sums(builder: Any, num_units: int, x: Rows, weights: Rows, sums: Rows) -> None:
    _UnitWriter(builder, num_units).sum_products(x, weights, sums)


def _write_finish(tile: TileWriter, sums: Rows, bias: Rows, residual: Rows, out: Rows) -> None:
    tile.finish(tile.load_products(sums), bias, residual, out)


def _type_sums(typing_context: Any, num_units: Any, x: Any, weights: Any, sums: Any) -> Any:
    return counted_code(_write_sums, MOST_UNITS, x, weights, sums)


def _type_finish(typing_context: Any, num_rows: Any, sums: Any, bias: Any, residual: Any, out: Any) -> Any:
    return tile_code(_write_finish, sums, bias, residual, out)


def _type_config(name: str) -> Callable[..., Any]:
    def type_config(typing_context: Any, config: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            start = context.make_array(config)(context, builder, args[0]).data
            kind = ir.FunctionType(_VOID, [start.type])
            builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.x86.{name}"), [start])
            return context.get_dummy_value()

        return types.void(config), generate

    return type_config


_sum: Callable[..., None] = intrinsic(_type_sums)
_finish: Callable[..., None] = intrinsic(_type_finish)
load_config: Callable[[Array], None] = intrinsic(_type_config("ldtilecfg"))
save_config: Callable[[Array], None] = intrinsic(_type_config("sttilecfg"))


@compiled(parallel=True)
def _multiply(x: Array, packed: Array, bias: Array, residual: Array, out: Array, config: Array, num_parts: int) -> None:
    num_rows, num_tiles = x.shape[0], packed.shape[0]
    has_residual = residual.shape[0] == num_rows
    for part in prange(num_parts):
        # Each thread has its own configuration of the unit. Restore it afterwards, because torch may rely on it.
        found = np.empty(64, np.uint8)
        save_config(found)
        load_config(config)
        sums = np.empty((MOST_UNITS * UNIT_ROWS, WIDTH), np.float32)
        for tile in range(part * num_tiles // num_parts, (part + 1) * num_tiles // num_parts):
            start = tile * WIDTH
            for first in range(0, num_rows, MOST_UNITS * UNIT_ROWS):
                end = min(first + MOST_UNITS * UNIT_ROWS, num_rows)
                _sum((end - first) // UNIT_ROWS, x[first:], packed[tile], sums)
                for row in range(first, end, FINISHED_ROWS):
                    _finish(
                        FINISHED_ROWS, sums[row - first :], bias[start:], residual[row * has_residual :, start:],
                        out[row:, start:],
                    )  # fmt: skip
        load_config(found)


@compiled()
def multiply_on_matrix_unit(x: Array, weights: MatrixUnitWeights, residual: Array) -> Array:
    """Computes the same as `multiply_bfloat16`, for multiples of UNIT_ROWS rows and of DEPTH input features."""
    assert x.shape[0] % UNIT_ROWS == 0, "the unit reads UNIT_ROWS rows at once"
    out = np.empty((x.shape[0], weights.bias.size), np.uint16)
    _multiply(x.view(np.uint32), weights.packed, weights.bias, residual, out, CONFIG, kernel_workers())
    return out
