"""Formats of quantized weights, and their arrangement in memory.

A weight is scale * code + offset, or scale * (code - zero). 32 input features (Q6_K: 16) of an output feature form a
group with one scale and offset. A code has 4, 5, 6 or 8 bits. A file stores weights by output feature. In memory, tiles
of 32 output features stay together, so that one instruction multiplies 4 input features of 8 or 16 output features.
Codes keep their bits; the 6-bit scales of Q4_K and Q5_K take 8.

    packed   tiles; a tile is a row of units, by input features
    unit     header (its groups' scales), then the groups' codes; one group, or eight with a common scale
    group    1024 codes [8 words][32 output features][4 input features]: the low 4 bits of the first and the second half
             share bytes, followed by the higher bits, of eight or four codes in a byte
"""

from dataclasses import dataclass

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import memory
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.cpu.kernels.tiles import WIDTH
from paceline.engine.models.gguf.blocks import BLOCK_FORMATS

# Input features with one scale.
GROUP = 32
# Input features of one word, and words of a group.
WORD_FEATURES = 4
GROUP_WORDS = GROUP // WORD_FEATURES
GROUP_CODES = GROUP * WIDTH
# Groups that are unpacked at once: 8 KiB of codes, which stay in the first cache.
CHUNK_GROUPS = 8
# Features of a unit whose scales have a common factor.
SUPER_FEATURES = GROUP * CHUNK_GROUPS
HALF_BYTES = 2 * WIDTH


@dataclass(frozen=True, slots=True)
class Format:
    name: str
    # Kernels know a format by its number.
    number: int
    bits: int
    # Groups in a unit, and in a block of the file.
    unit_groups: int
    # Bytes in front of a unit's codes: its scales.
    header_bytes: int
    # Bytes of a block in the file.
    block_bytes: int
    # The code of weight 0, in formats that have no offsets.
    zero: int | None
    # More than 1 are signed factors of the unit's scale.
    scales_per_group: int

    @property
    def block_features(self) -> int:
        return self.unit_groups * GROUP

    @property
    def group_bytes(self) -> int:
        return GROUP_CODES * self.bits // 8

    @property
    def unit_bytes(self) -> int:
        return self.header_bytes + self.unit_groups * self.group_bytes

    def tile_bytes(self, in_features: int) -> int:
        return in_features // self.block_features * self.unit_bytes


# Scale and offset of a unit as 16 bits, then the factors of its groups as 8.
FORMATS = tuple(
    Format(
        each.name, number, each.bits, each.num_groups, each.num_halves * HALF_BYTES + each.num_factors * WIDTH,
        each.num_bytes, each.zero, each.scales_per_group,
    )
    for number, each in enumerate(BLOCK_FORMATS)
)  # fmt: skip
BY_NAME = {each.name: each for each in FORMATS}
# Those that `_read_header` and `_read_codes` tell apart.
Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0 = (
    BY_NAME[name].number for name in ("Q4_1", "Q4_K", "Q5_0", "Q5_1", "Q5_K", "Q6_K", "Q8_0")
)
# The same for kernels, by a format's number.
BITS = np.array([each.bits for each in FORMATS])
UNIT_GROUPS = np.array([each.unit_groups for each in FORMATS])
HEADER_BYTES = np.array([each.header_bytes for each in FORMATS])
UNIT_BYTES = np.array([each.unit_bytes for each in FORMATS])
CHUNK_BYTES = np.array([CHUNK_GROUPS // each.unit_groups * each.unit_bytes for each in FORMATS])
BLOCK_BYTES = np.array([each.block_bytes for each in FORMATS])
SCALES_PER_GROUP = np.array([each.scales_per_group for each in FORMATS])


def pack(
    data: Array, row_order: Array | None, fmt: Format, in_features: int, arena: memory.Arena = memory.weights
) -> Array:
    """Arranges a matrix of a file in tiles: [num_tiles, bytes of a tile] uint8, padded with weights of 0.

    data: [out_features, bytes of a row] uint8; row_order: [out_features] int64, the file's row for each output, or None.
    """
    order = np.arange(data.shape[0]) if row_order is None else row_order
    # As the data of a mapped file: arrays that may be written to would be compiled for a second time.
    data = data.view()
    data.flags.writeable = False
    num_tiles, tile_bytes = -(-data.shape[0] // WIDTH), fmt.tile_bytes(in_features)
    packed = arena.reserve(num_tiles * tile_bytes).reshape(num_tiles, tile_bytes)
    _pack(data, order, fmt.number, packed)
    return packed


@compiled(parallel=True)
def _pack(data: Array, order: Array, number: int, packed: Array) -> None:
    for tile in prange(packed.shape[0]):
        natural = np.zeros((WIDTH, SUPER_FEATURES), np.uint8)
        words = natural.view(np.uint32)
        codes = np.empty(GROUP_CODES, np.uint8)
        code_words = codes.view(np.uint32)
        unit_groups, group_bytes = UNIT_GROUPS[number], GROUP_CODES * BITS[number] // 8
        num_rows = min(WIDTH, order.size - tile * WIDTH)
        for unit in range(packed.shape[1] // UNIT_BYTES[number]):
            out = packed[tile, unit * UNIT_BYTES[number] : (unit + 1) * UNIT_BYTES[number]]
            # Rows behind the last one have scale and offset 0.
            out[: HEADER_BYTES[number]] = 0
            for row in range(num_rows):
                source = data[order[tile * WIDTH + row], unit * BLOCK_BYTES[number] :]
                _read_header(source, number, row, out)
                _read_codes(source, number, natural[row])
            for group in range(unit_groups):
                arrange(words, group * GROUP_WORDS, code_words)
                start = HEADER_BYTES[number] + group * group_bytes
                write_bits(codes, BITS[number], out[start : start + group_bytes])


@compiled()
def _copy_half(source: Array, start: int, out: Array, place: int) -> None:
    out[place], out[place + 1] = source[start], source[start + 1]


@compiled()
def _read_header(source: Array, number: int, row: int, out: Array) -> None:
    """Copies a block's scales to the row's places in the unit's header."""
    if number == Q6_K:
        _copy_half(source, 208, out, 2 * row)
        for part in range(16):
            out[HALF_BYTES + part * WIDTH + row] = source[192 + part]
        return
    _copy_half(source, 0, out, 2 * row)
    if number in (Q4_1, Q5_1, Q4_K, Q5_K):
        _copy_half(source, 2, out, HALF_BYTES + 2 * row)
    if number in (Q4_K, Q5_K):
        scales = source[4:16]
        for group in range(8):
            if group < 4:
                scale, offset = scales[group] & 63, scales[group + 4] & 63
            else:
                scale = (scales[group + 4] & 15) | ((scales[group - 4] >> 6) << 4)
                offset = (scales[group + 4] >> 4) | ((scales[group] >> 6) << 4)
            out[2 * HALF_BYTES + group * WIDTH + row] = scale
            out[2 * HALF_BYTES + (8 + group) * WIDTH + row] = offset


@compiled()
def _read_codes(source: Array, number: int, codes: Array) -> None:
    """Writes a block's codes in the order of their features."""
    if number == Q8_0:
        for i in range(GROUP):
            codes[i] = source[2 + i] ^ 128
    elif number == Q6_K:
        for part in range(2):
            low, high = source[part * 64 :], source[128 + part * 32 :]
            for i in range(GROUP):
                at = part * 128 + i
                codes[at] = (low[i] & 15) | ((high[i] & 3) << 4)
                codes[at + 32] = (low[i + 32] & 15) | (((high[i] >> 2) & 3) << 4)
                codes[at + 64] = (low[i] >> 4) | (((high[i] >> 4) & 3) << 4)
                codes[at + 96] = (low[i + 32] >> 4) | ((high[i] >> 6) << 4)
    elif number in (Q4_K, Q5_K):
        low, high = source[16 if number == Q4_K else 48 :], source[16:48]
        for pair in range(4):
            _split_nibbles(low, pair * GROUP, GROUP, codes, pair * 2 * GROUP)
        if number == Q5_K:
            _add_fifths(high, codes)
    else:
        has_fifth = number in (Q5_0, Q5_1)
        start = 4 if number in (Q4_1, Q5_1) else 2
        high, low = source[start:], source[start + (4 if has_fifth else 0) :]
        _split_nibbles(low, 0, GROUP // 2, codes, 0)
        if has_fifth:
            for i in range(GROUP):
                codes[i] |= ((high[i // 8] >> (i % 8)) & 1) << 4


@compiled()
def _split_nibbles(source: Array, start: int, count: int, codes: Array, first: int) -> None:
    """Writes the low halves of `count` bytes, then the high halves."""
    for i in range(count):
        codes[first + i] = source[start + i] & 15
        codes[first + count + i] = source[start + i] >> 4


@compiled()
def _add_fifths(high: Array, codes: Array) -> None:
    """Adds the fifth bits: bit g of byte i belongs to code i in group g. Unrolled: variable shifts get widened."""
    for i in range(GROUP):
        bits = high[i]
        codes[i] |= (bits & 1) << 4
        codes[GROUP + i] |= (bits & 2) << 3
        codes[2 * GROUP + i] |= (bits & 4) << 2
        codes[3 * GROUP + i] |= (bits & 8) << 1
        codes[4 * GROUP + i] |= bits & 16
        codes[5 * GROUP + i] |= (bits & 32) >> 1
        codes[6 * GROUP + i] |= (bits & 64) >> 2
        codes[7 * GROUP + i] |= bits >> 7 << 4


@compiled()
def arrange(natural: Array, first: int, codes: Array) -> None:
    """Reorders natural: [WIDTH, words], from word `first`, to codes: [GROUP_WORDS][WIDTH] words."""
    for word in range(GROUP_WORDS):
        for row in range(WIDTH):
            codes[word * WIDTH + row] = natural[row, first + word]


@compiled()
def write_bits(codes: Array, bits: int, out: Array) -> None:
    """Packs codes into `bits` bits each."""
    if bits == 8:
        for i in range(GROUP_CODES):
            out[i] = codes[i]
        return
    half = GROUP_CODES // 2
    for i in range(half):
        out[i] = (codes[i] & 15) | ((codes[half + i] & 15) << 4)
    if bits > 4:
        more = bits - 4
        width = GROUP_CODES * more // 8
        high = out[half:]
        high[:width] = 0
        for part in range(8 // more):
            # A product, because the compiler widens shifts by a variable.
            factor = 1 << (part * more)
            for i in range(width):
                high[i] |= (codes[part * width + i] >> 4) * factor
