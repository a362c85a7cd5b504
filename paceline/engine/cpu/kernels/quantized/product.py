"""Products with quantized weights. A linear may have parts with different formats.

Workers split the tiles. Few rows use the processor's dot product (`dots`), many the matrix unit, if there is one
(`matrix_unit`), with unpacked codes. Both give the same bits.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.bfloat16 import load_config, save_config
from paceline.engine.cpu.kernels.quantized.dots import MOST_ROWS, add_dots
from paceline.engine.cpu.kernels.quantized.matrix_unit import (
    CONFIG,
    IN_HALVES,
    KIND,
    SCRATCH_ROWS,
    UNIT,
    add_units,
    find_unit,
)
from paceline.engine.cpu.kernels.quantized.packing import (
    CHUNK_BYTES,
    CHUNK_GROUPS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
)
from paceline.engine.cpu.kernels.quantized.rounding import round_rows
from paceline.engine.cpu.kernels.quantized.unpacking import unpack
from paceline.engine.cpu.kernels.scalars import call_at, compiled, put, widen
from paceline.engine.cpu.kernels.tiles import WIDTH
from paceline.engine.threads import kernel_workers

HAS_UNIT = find_unit()
# With fewer rows the dot product is as fast: it needs no unpacked codes.
UNIT_FROM_ROWS = 40


class QuantizedWeights(NamedTuple):
    # [num_parts, 6] int64: the format's number, `dots_address` and `unpack_address`; the address of the part's tiles, how
    # many there are, bytes of a tile.
    parts: Array
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`, of the rows' dtype
    kernel_at: int = 0  # see `decoder.with_kernel`


@compiled()
def _multiply_by_unit(
    number: int, unpacks_at: int, address: int, num_groups: int, num_rows: int, words: Array, scales: Array, codes: Array,
    factors: Array, offsets: Array, scratch: Array, out: Array,
) -> None:  # fmt: skip
    code_words = codes.reshape(-1).view(np.uint32).reshape((2 * CHUNK_GROUPS * GROUP_WORDS, WIDTH))
    units, kind = -(-num_rows // UNIT), KIND[number]
    for chunk in range(words.shape[0]):
        count = min(CHUNK_GROUPS, num_groups - chunk * CHUNK_GROUPS)
        call_at(unpack, unpacks_at, (number, address, count, codes, factors, offsets))
        address += CHUNK_BYTES[number]
        count *= 1 + (kind == IN_HALVES)
        add_units(kind, units, chunk, count, words, scales, code_words, factors, offsets, scratch, out)


@compiled()
def _multiply_by_dots(
    number: int, dots_at: int, address: int, num_groups: int, num_rows: int, words: Array, scales: Array, minus: Array,
    out: Array,
) -> None:  # fmt: skip
    num_chunks = words.shape[0]
    if num_rows <= MOST_ROWS:
        whole = number, num_rows, 0, 0, num_chunks, num_groups, address, words, scales, minus, out
        call_at(add_dots, dots_at, whole)
        return
    for chunk in range(num_chunks):
        count = min(CHUNK_GROUPS, num_groups - chunk * CHUNK_GROUPS)
        for row in range(0, num_rows, MOST_ROWS):
            rows = min(MOST_ROWS, num_rows - row)
            call_at(add_dots, dots_at, (number, rows, row, chunk, 1, count, address, words, scales, minus, out))
        address += CHUNK_BYTES[number]


@compiled()
def _finish(totals: Array, start: int, bias: Array, residual: Array, out: Array) -> None:
    """Writes a tile's sums with bias and residual, from output feature `start` on."""
    has_residual = residual.shape[0] == out.shape[0]
    of_bias = bias[start : start + WIDTH]
    for row in range(out.shape[0]):
        total, to = totals[row], out[row, start : start + WIDTH]
        of_residual = residual[row * has_residual, start : start + WIDTH]
        for i in range(WIDTH):
            put(to, i, total[i] + of_bias[i] + widen(of_residual[i]))


@compiled(parallel=True)
def _multiply(
    parts: Array, num_groups: int, words: Array, scales: Array, minus: Array, bias: Array,
    residual: Array, out: Array, config: Array, num_workers: int,
) -> None:  # fmt: skip
    num_rows = out.shape[0]
    by_unit = HAS_UNIT and num_rows >= UNIT_FROM_ROWS
    for worker in prange(num_workers):
        found = np.empty(64, np.uint8)
        if by_unit:
            # Each thread has its own configuration of the unit. Restore it afterwards, because torch may rely on it.
            save_config(found)
            load_config(config)
        codes = np.empty((2 * CHUNK_GROUPS * by_unit, GROUP_CODES), np.int8)
        factors = np.empty((2 * CHUNK_GROUPS * by_unit, WIDTH), np.float32)
        offsets, scratch = np.empty_like(factors), np.empty((SCRATCH_ROWS * by_unit, UNIT), np.int32)
        totals = np.empty((scales.shape[1], WIDTH), np.float32)
        before = 0
        for part in range(parts.shape[0]):
            number, dots_at, unpacks_at, start, num_tiles, tile_bytes = parts[part]
            for tile in range(worker * num_tiles // num_workers, (worker + 1) * num_tiles // num_workers):
                address = start + tile * tile_bytes
                totals[:] = np.float32(0)
                if by_unit:
                    _multiply_by_unit(
                        number, unpacks_at, address, num_groups, num_rows, words, scales, codes, factors, offsets,
                        scratch, totals,
                    )  # fmt: skip
                else:
                    _multiply_by_dots(number, dots_at, address, num_groups, num_rows, words, scales, minus, totals)
                _finish(totals, (before + tile) * WIDTH, bias, residual, out)
            before += num_tiles
        if by_unit:
            load_config(found)


@compiled()
def multiply_quantized(x: Array, weights: QuantizedWeights, residual: Array) -> Array:
    """Computes x weights^T + bias + residual, rounded once: [num_rows, padded out_features] of x's dtype.

    x: [num_rows, in_features]; residual: [num_rows, padded out_features], or the weights' no_residual.
    """
    rows = round_rows(x)
    out = np.empty((x.shape[0], weights.bias.size), x.dtype)
    _multiply(
        weights.parts, x.shape[1] // GROUP, rows.numbers.view(np.uint32), rows.scales, rows.minus,
        weights.bias, residual, out, CONFIG, kernel_workers(),
    )  # fmt: skip
    return out
