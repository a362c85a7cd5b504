"""Packed weights of more bits, rounded to Q4_1.

A draft's steps take as long as its weights take to be read, and a draft may differ from its file: the target decides.
"""

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import memory
from paceline.engine.cpu.kernels.quantised.formats import (
    CHUNK_BYTES,
    CHUNK_GROUPS,
    FORMATS,
    GROUP,
    GROUP_CODES,
    GROUP_WORDS,
    Q4_1,
    Q6_K,
    WORD_FEATURES,
    Format,
    arrange,
    write_bits,
)
from paceline.engine.cpu.kernels.quantised.unpacking import unpack, unpack_address
from paceline.engine.cpu.kernels.scalars import call_at, compiled
from paceline.engine.cpu.kernels.tiles import WIDTH

FOUR_BITS = FORMATS[Q4_1]
_LARGEST_CODE = 15
_UNIT_BYTES, _HEADER_BYTES = FOUR_BITS.unit_bytes, FOUR_BITS.header_bytes


def round_to_four_bits(tiles: Array, fmt: Format, in_features: int) -> Array:
    """Returns tiles of FOUR_BITS with the same weights, rounded as gguf's `quantize` does.

    tiles: [num_tiles, bytes of a tile] uint8, as `formats.pack` returns them.
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
    num_groups, parts = rounded.shape[1], 2 if number == Q6_K else 1
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
