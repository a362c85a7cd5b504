"""Rows of a packed matrix, for the embedding: the head's weights are those of the embedding in many models."""

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_GROUPS,
    GROUP,
    GROUP_CODES,
    Q6_K,
    UNIT_BYTES,
    UNIT_GROUPS,
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
    codes = np.empty((CHUNK_GROUPS, GROUP_CODES), np.uint8)
    scales, offsets = np.empty((2 * CHUNK_GROUPS, WIDTH), np.float32), np.empty((2 * CHUNK_GROUPS, WIDTH), np.float32)
    scale_features = GROUP // 2 if number == Q6_K else GROUP
    for index in range(rows.size):
        tile, lane = rows[index] // WIDTH, rows[index] % WIDTH
        place = address + tile * tile_bytes
        for first in range(0, num_groups, CHUNK_GROUPS):
            count = min(CHUNK_GROUPS, num_groups - first)
            num_units = count // UNIT_GROUPS[number]
            unpack(number, place, num_units, codes, scales, offsets)
            place += num_units * UNIT_BYTES[number]
            for feature in range(count * GROUP):
                group, word = feature // GROUP, feature % GROUP // WORD_FEATURES
                code = codes[group, (word * WIDTH + lane) * WORD_FEATURES + feature % WORD_FEATURES]
                of_scale = feature // scale_features
                value = scales[of_scale, lane] * np.float32(code) + offsets[of_scale, lane]
                put(out, (index, first * GROUP + feature), value)
