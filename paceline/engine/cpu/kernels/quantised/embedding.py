"""Rows of a packed matrix, for the embedding: the head's weights are those of the embedding in many models."""

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_BYTES,
    CHUNK_GROUPS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
    Q6_K,
    WORD_FEATURES,
)
from paceline.engine.cpu.kernels.quantised.unpacking import unpack
from paceline.engine.cpu.kernels.scalars import compiled, put
from paceline.engine.cpu.kernels.tiles import WIDTH


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
