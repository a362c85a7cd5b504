"""x weights^T + bias + residual, for quantised weights. A linear may have parts with different formats.

Each worker unpacks some groups of a tile (`unpacking`), and multiplies all rows with them: few rows by the processor's
dot product (`dots`), many on its matrix unit, where there is one (`matrix_unit`). Both give the same bits.
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.matrix_unit import load_config, save_config
from paceline.engine.cpu.kernels.quantised.dots import LANES, MOST_ROWS, add_dots, add_half_dots
from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_GROUPS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
    Q6_K,
    UNIT_BYTES,
    UNIT_GROUPS,
)
from paceline.engine.cpu.kernels.quantised.matrix_unit import (
    CONFIG,
    UNIT,
    add_units,
    find_unit,
)
from paceline.engine.cpu.kernels.quantised.rounding import round_rows
from paceline.engine.cpu.kernels.quantised.unpacking import unpack
from paceline.engine.cpu.kernels.scalars import compiled, put, widen
from paceline.engine.cpu.kernels.tiles import WIDTH, rows_at_once
from paceline.engine.threads import kernel_workers

HAS_UNIT = find_unit()
# With fewer rows the dot product is faster: the matrix unit multiplies UNIT rows in any case. With groups of 16 features it
# always is: the unit would be half empty.
UNIT_FROM_ROWS = 12


class QuantisedWeights(NamedTuple):
    """A linear's arrays."""

    # [num_parts, 4] int64: the format's number, the address of the part's tiles, how many there are, bytes of a tile.
    parts: Array
    bias: Array  # [padded out_features] float32
    no_residual: Array  # `tiles.no_residual`, of the rows' dtype


@compiled()
def _multiply_chunk(
    num_rows: int, is_half: bool, chunk: int, num_groups: int, words: Array, scales: Array, sums: Array,
    half_sums: Array, codes: Array, factors: Array, offsets: Array, scratch: Array, out: Array,
) -> None:  # fmt: skip
    """out: [padded rows, WIDTH] += all rows times a chunk of a tile, on the matrix unit or by dot products."""
    count = 2 * num_groups if is_half else num_groups
    if HAS_UNIT and num_rows >= UNIT_FROM_ROWS and not is_half:
        units = -(-num_rows // UNIT)
        add_units(1, units, chunk, count, words, scales, sums, codes, factors, offsets, scratch, out)
        return
    at_once = rows_at_once(num_rows, MOST_ROWS, MOST_ROWS)
    for row in range(0, num_rows, at_once):
        rows = min(at_once, num_rows - row)
        for lane in range(0, WIDTH, LANES):
            if is_half:
                add_half_dots(rows, row, chunk, lane, count, words, scales, half_sums, codes, factors, offsets, out)
            else:
                add_dots(rows, row, chunk, lane, count, words, scales, sums, codes, factors, offsets, out)


@compiled()
def _multiply_tile(
    number: int, address: int, num_groups: int, num_rows: int, words: Array, scales: Array, sums: Array,
    half_sums: Array, codes: Array, factors: Array, offsets: Array, scratch: Array, out: Array,
) -> None:  # fmt: skip
    """out: [padded rows, WIDTH] = all rows times the tile of weights at the address."""
    out[:] = np.float32(0)
    code_words = codes.reshape(-1).view(np.uint32).reshape((CHUNK_GROUPS * GROUP_WORDS, WIDTH))
    for chunk in range(words.shape[0]):
        count = min(CHUNK_GROUPS, num_groups - chunk * CHUNK_GROUPS)
        num_units = count // UNIT_GROUPS[number]
        unpack(number, address, num_units, codes, factors, offsets)
        address += num_units * UNIT_BYTES[number]
        _multiply_chunk(
            num_rows, number == Q6_K, chunk, count, words, scales, sums, half_sums, code_words, factors, offsets,
            scratch, out,
        )  # fmt: skip


@compiled()
def _finish(totals: Array, start: int, bias: Array, residual: Array, out: Array) -> None:
    """Writes a tile's sums, with bias and residual, from output feature `start` on."""
    has_residual = residual.shape[0] == out.shape[0]
    of_bias = bias[start : start + WIDTH]
    for row in range(out.shape[0]):
        total, to = totals[row], out[row, start : start + WIDTH]
        of_residual = residual[row * has_residual, start : start + WIDTH]
        for i in range(WIDTH):
            put(to, i, total[i] + of_bias[i] + widen(of_residual[i]))


@compiled(parallel=True)
def _multiply(
    parts: Array, num_groups: int, words: Array, scales: Array, sums: Array, half_sums: Array, bias: Array,
    residual: Array, out: Array, config: Array, num_workers: int,
) -> None:  # fmt: skip
    num_rows = out.shape[0]
    for worker in prange(num_workers):
        found = np.empty(64, np.uint8)
        if HAS_UNIT:
            # Each thread has its own configuration of the unit. Restore it afterwards, because torch may rely on it.
            save_config(found)
            load_config(config)
        codes = np.empty((CHUNK_GROUPS, GROUP_CODES), np.uint8)
        factors, offsets = (
            np.empty((2 * CHUNK_GROUPS, WIDTH), np.float32),
            np.empty((2 * CHUNK_GROUPS, WIDTH), np.float32),
        )
        totals, scratch = (
            np.empty((scales.shape[1], WIDTH), np.float32),
            np.empty((CHUNK_GROUPS * UNIT, UNIT), np.int32),
        )
        before = 0
        for part in range(parts.shape[0]):
            number, address, num_tiles, tile_bytes = parts[part]
            for tile in range(worker * num_tiles // num_workers, (worker + 1) * num_tiles // num_workers):
                _multiply_tile(
                    number, address + tile * tile_bytes, num_groups, num_rows, words, scales, sums, half_sums, codes,
                    factors, offsets, scratch, totals,
                )  # fmt: skip
                _finish(totals, (before + tile) * WIDTH, bias, residual, out)
            before += num_tiles
        if HAS_UNIT:
            load_config(found)


@compiled()
def multiply_quantised(x: Array, weights: QuantisedWeights, residual: Array) -> Array:
    """x weights^T + bias + residual, with x rounded as `rounding` says, and the result rounded once.

    x: [num_rows, in_features]; residual: [num_rows, padded out_features], or the weights' no_residual. Returns
    [num_rows, padded out_features] of x's dtype.
    """
    rows = round_rows(x)
    out = np.empty((x.shape[0], weights.bias.size), x.dtype)
    _multiply(
        weights.parts, x.shape[1] // GROUP, rows.numbers.view(np.uint32), rows.scales, rows.sums, rows.half_sums,
        weights.bias, residual, out, CONFIG, kernel_workers(),
    )  # fmt: skip
    return out
