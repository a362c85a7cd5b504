"""Unpacked weights for the matrix unit and for embedding lookups: a signed byte per code, float32 scales and offsets.

A code becomes code - zero if the format has a zero. Codes that share a scale fill a group: Q6_K's, 16 features per
scale, are padded with zeros.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_BYTES,
    CHUNK_GROUPS,
    FORMATS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
    Q6_K,
    WORD_FEATURES,
    Format,
)
from paceline.engine.cpu.kernels.quantised.writer import (
    BYTE,
    INDEX,
    WORD_BYTES,
    GroupReader,
    Strided,
    format_code,
    indexed_code,
)
from paceline.engine.cpu.kernels.scalars import address_of, call_at, compiled, put
from paceline.engine.cpu.kernels.tiles import LANES, WIDTH

_CODES = ir.VectorType(BYTE, LANES * WORD_BYTES)


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
    parts = 2 if number == Q6_K else 1
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
