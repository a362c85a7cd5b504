"""Unpacked weights for the matrix unit, for embedding lookups and for rounding to fewer bits: a signed byte per code, float32
scales and offsets.

A code becomes code - zero if the format has a zero. Codes that share a scale fill a group: Q6_K's, 16 features per
scale, are padded with zeros.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import prange, types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import memory
from paceline.engine.cpu.kernels.quantized.instruction_writer import (
    BYTE,
    INDEX,
    WORD_BYTES,
    GroupReader,
    Strided,
    format_code,
    indexed_code,
)
from paceline.engine.cpu.kernels.quantized.packing import (
    BY_NAME,
    CHUNK_BYTES,
    CHUNK_GROUPS,
    FORMATS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
    SCALES_PER_GROUP,
    WORD_FEATURES,
    Format,
    arrange,
    write_bits,
)
from paceline.engine.cpu.kernels.scalars import address_of, call_at, compiled, put
from paceline.engine.cpu.kernels.tiles import LANES, WIDTH

_CODES = ir.VectorType(BYTE, LANES * WORD_BYTES)
FOUR_BITS = BY_NAME["Q4_1"]
_UNIT_BYTES, _HEADER_BYTES = FOUR_BITS.unit_bytes, FOUR_BITS.header_bytes
_LARGEST_CODE = 15


class _Unpacker(GroupReader):
    """Writes the code that unpacks a group of one format."""

    def write(self, chunk: Any, group: Any, codes: Strided, scales: Strided, offsets: Strided) -> None:
        builder = self.builder
        unit = self.unit_of(chunk, group)
        self.fetch(unit, group)
        for lane in range(0, WIDTH, LANES):
            parts = self.scales(unit, group, lane, self.common_scales(unit, lane))
            words = [self._signed(self.code(self.codes_of(unit, group), word, lane)) for word in range(GROUP_WORDS)]
            for part, (scale, offset) in enumerate(parts):
                row = builder.add(builder.mul(group, INDEX(len(parts))), INDEX(part))
                self.store(scale, scales.at(row, INDEX(lane)), 0, INDEX(0))
                self.store(self.floats(None) if offset is None else offset, offsets.at(row, INDEX(lane)), 0, INDEX(0))
                for word, value in enumerate(words):
                    is_here = word // (GROUP_WORDS // len(parts)) == part
                    place = codes.at(row, INDEX((word * WIDTH + lane) * WORD_BYTES))
                    self.store(value if is_here else self.words(None), place, 0, INDEX(0))

    def _signed(self, words: Any) -> Any:
        if self._format.zero is None:
            return words
        codes = self.builder.bitcast(words, _CODES)
        zero = self._format.zero
        signed = self.builder.sub(codes, _CODES([zero] * _CODES.count))
        return self.builder.bitcast(signed, self.words)


def _write_unpack(fmt: Format) -> Callable[..., None]:
    def write(builder: Any, count: int, indices: Any, codes: Strided, scales: Strided, offsets: Strided) -> None:
        address, num_groups = indices
        with cgutils.for_range(builder, num_groups) as loop:
            _Unpacker(builder, fmt, LANES).write(address, loop.index, codes, scales, offsets)

    return write


def _type_unpack(
    typing_context: Any, number: Any, count: Any, address: Any, num_groups: Any, codes: Any, scales: Any, offsets: Any
) -> Any:
    write = _write_unpack(FORMATS[number.literal_value])
    return format_code(number, indexed_code(write, (1,), 2, codes, scales, offsets))


_unpack: Callable[..., None] = intrinsic(prefer_literal=True)(_type_unpack)


@compiled()
def unpack(number: int, address: int, num_groups: int, codes: Array, scales: Array, offsets: Array) -> None:
    """Unpacks a chunk of a tile at an address, of the format with this number, a literal.

    num_groups: of 32 features; codes: [groups of one scale, GROUP_CODES] int8; scales and offsets: [groups of one scale,
    WIDTH] float32.
    """
    _unpack(number, 1, address, num_groups, codes, scales, offsets)


def unpack_address(fmt: Format) -> int:
    """Returns the address of `unpack` for this format."""
    count, floats = types.intp, types.float32[:, ::1]
    return address_of(unpack, types.literal(fmt.number), count, count, types.int8[:, ::1], floats, floats)


@compiled()
def look_up(number: int, unpacks_at: int, address: int, tile_bytes: int, rows: Array, out: Array) -> None:
    """Writes rows: [num_rows] int64 of a packed matrix to out: [num_rows, in_features] float32 or bfloat16."""
    num_groups = out.shape[1] // GROUP
    parts = SCALES_PER_GROUP[number]
    codes = np.empty((parts * CHUNK_GROUPS, GROUP_CODES), np.int8)
    scales, offsets = np.empty((codes.shape[0], WIDTH), np.float32), np.empty((codes.shape[0], WIDTH), np.float32)
    for index in range(rows.size):
        tile, lane = rows[index] // WIDTH, rows[index] % WIDTH
        chunk = address + tile * tile_bytes
        for first in range(0, num_groups, CHUNK_GROUPS):
            count = min(CHUNK_GROUPS, num_groups - first)
            call_at(unpack, unpacks_at, (number, chunk, count, codes, scales, offsets))
            chunk += CHUNK_BYTES[number]
            for feature in range(count * GROUP):
                word = feature % GROUP // WORD_FEATURES
                group = feature // GROUP * parts + word * parts // GROUP_WORDS
                code = codes[group, (word * WIDTH + lane) * WORD_FEATURES + feature % WORD_FEATURES]
                value = scales[group, lane] * np.float32(code) + offsets[group, lane]
                put(out, (index, first * GROUP + feature), value)


def round_to_four_bits(tiles: Array, fmt: Format, in_features: int) -> Array:
    """Returns tiles of FOUR_BITS with the same weights, rounded as gguf's `quantize` does.

    tiles: [num_tiles, bytes of a tile] uint8, as `formats.pack` returns them.

    A draft's steps take as long as its weights take to be read, and it may differ from its file: the target decides.
    """
    num_tiles, num_groups = len(tiles), in_features // GROUP
    tile_bytes = FOUR_BITS.tile_bytes(in_features)
    packed = memory.weights.reserve(num_tiles * tile_bytes).reshape(num_tiles, tile_bytes)
    scales = np.empty((num_tiles, num_groups, 2, WIDTH), np.float32)
    _round(fmt.number, unpack_address(fmt), tiles.ctypes.data, tiles.shape[1], packed, scales)
    units = packed.reshape(num_tiles, num_groups, _UNIT_BYTES)
    units[:, :, :_HEADER_BYTES] = scales.astype(np.float16).view(np.uint8).reshape(num_tiles, num_groups, -1)
    return packed


@compiled(parallel=True)
def _round(number: int, unpacks_at: int, address: int, tile_bytes: int, packed: Array, rounded: Array) -> None:
    """Writes the codes to packed: [num_tiles, bytes], and scale and offset to rounded: [num_tiles, groups, 2, WIDTH]."""
    num_groups, parts = rounded.shape[1], SCALES_PER_GROUP[number]
    for tile in prange(packed.shape[0]):
        codes = np.empty((parts * CHUNK_GROUPS, GROUP_CODES), np.int8)
        scales, offsets = np.empty((codes.shape[0], WIDTH), np.float32), np.empty((codes.shape[0], WIDTH), np.float32)
        values = np.empty(GROUP, np.float32)
        natural, arranged = np.empty((WIDTH, GROUP), np.uint8), np.empty(GROUP_CODES, np.uint8)
        for group in range(num_groups):
            place = group % CHUNK_GROUPS
            if place == 0:
                chunk = address + tile * tile_bytes + group // CHUNK_GROUPS * CHUNK_BYTES[number]
                count = min(CHUNK_GROUPS, num_groups - group)
                call_at(unpack, unpacks_at, (number, chunk, count, codes, scales, offsets))
            for row in range(WIDTH):
                for feature in range(GROUP):
                    word = feature // WORD_FEATURES
                    part = place * parts + word * parts // GROUP_WORDS
                    code = codes[part, (word * WIDTH + row) * WORD_FEATURES + feature % WORD_FEATURES]
                    values[feature] = scales[part, row] * np.float32(code) + offsets[part, row]
                low = values.min()
                step = (values.max() - low) / np.float32(_LARGEST_CODE)
                factor = np.float32(0) if step == 0 else np.float32(1) / step
                for feature in range(GROUP):
                    natural[row, feature] = min(int((values[feature] - low) * factor + np.float32(0.5)), _LARGEST_CODE)
                rounded[tile, group, 0, row], rounded[tile, group, 1, row] = step, low
            arrange(natural.view(np.uint32), 0, arranged.view(np.uint32))
            unit = packed[tile, group * _UNIT_BYTES : (group + 1) * _UNIT_BYTES]
            write_bits(arranged, 4, unit[_HEADER_BYTES:])
