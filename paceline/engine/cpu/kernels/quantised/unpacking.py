"""Packed weights -> one signed byte for each code, and scales and offsets as float32: for the matrix unit, and to look up rows.

A code becomes code - zero where the format has a zero. Codes that share a scale fill a group of their own: those of Q6_K,
16 features with a scale, are followed or preceded by as many bytes of 0.

Rows of a packed matrix, for the embedding: the head's weights are those of the embedding in many models.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
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
    Q4_0,
    Q4_1,
    Q4_K,
    Q5_0,
    Q5_1,
    Q5_K,
    Q6_K,
    Q8_0,
    WORD_FEATURES,
    Format,
)
from paceline.engine.cpu.kernels.quantised.writer import BYTE, INDEX, WORD_BYTES, GroupReader, Strided, indexed_code
from paceline.engine.cpu.kernels.scalars import compiled, put
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

    def type_unpack(
        typing_context: Any, count: Any, address: Any, num_groups: Any, codes: Any, scales: Any, offsets: Any
    ) -> Any:
        return indexed_code(write, (1,), 2, codes, scales, offsets)

    made: Callable[..., None] = intrinsic(type_unpack)
    return made


_q4_0, _q4_1, _q5_0, _q5_1, _q8_0, _q4_k, _q5_k, _q6_k = map(_write_unpack, FORMATS)


@compiled()
def unpack(number: int, address: int, num_groups: int, codes: Array, scales: Array, offsets: Array) -> None:
    """Unpacks a chunk of a tile, from an address on, of the format with this number.

    num_groups: groups of 32 features; codes: [groups of one scale, GROUP_CODES] int8; scales and offsets: [groups of one
    scale, WIDTH] float32.
    """
    if number == Q4_0:
        _q4_0(1, address, num_groups, codes, scales, offsets)
    elif number == Q4_1:
        _q4_1(1, address, num_groups, codes, scales, offsets)
    elif number == Q5_0:
        _q5_0(1, address, num_groups, codes, scales, offsets)
    elif number == Q5_1:
        _q5_1(1, address, num_groups, codes, scales, offsets)
    elif number == Q8_0:
        _q8_0(1, address, num_groups, codes, scales, offsets)
    elif number == Q4_K:
        _q4_k(1, address, num_groups, codes, scales, offsets)
    elif number == Q5_K:
        _q5_k(1, address, num_groups, codes, scales, offsets)
    else:
        _q6_k(1, address, num_groups, codes, scales, offsets)


@compiled()
def look_up(number: int, address: int, tile_bytes: int, rows: Array, out: Array) -> None:
    """out[i] = row rows[i] of the matrix at the address, in tiles of the format with this number.

    rows: [num_rows] int64; out: [num_rows, in_features] float32 or bfloat16.
    """
    num_groups = out.shape[1] // GROUP
    parts = 2 if number == Q6_K else 1
    codes = np.empty((parts * CHUNK_GROUPS, GROUP_CODES), np.int8)
    scales, offsets = np.empty((codes.shape[0], WIDTH), np.float32), np.empty((codes.shape[0], WIDTH), np.float32)
    for index in range(rows.size):
        tile, lane = rows[index] // WIDTH, rows[index] % WIDTH
        chunk = address + tile * tile_bytes
        for first in range(0, num_groups, CHUNK_GROUPS):
            count = min(CHUNK_GROUPS, num_groups - first)
            unpack(number, chunk, count, codes, scales, offsets)
            chunk += CHUNK_BYTES[number]
            for feature in range(count * GROUP):
                word = feature % GROUP // WORD_FEATURES
                group = feature // GROUP * parts + word * parts // GROUP_WORDS
                code = codes[group, (word * WIDTH + lane) * WORD_FEATURES + feature % WORD_FEATURES]
                value = scales[group, lane] * np.float32(code) + offsets[group, lane]
                put(out, (index, first * GROUP + feature), value)
