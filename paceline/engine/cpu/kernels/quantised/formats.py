"""Formats of quantised weights, as GGUF files have them, and how we arrange them in memory.

A weight is scale * code + offset, or scale * (code - zero). 32 input features of one output feature form a group with one
scale and one offset (Q6_K: 16). A code has 4, 5, 6 or 8 bits. A file keeps each output feature's weights together. We keep those of a tile
of 32 output features together, so that one instruction multiplies 4 input features of 8 or 16 output features. The
bits stay the same, and so does their number; only the 6-bit scales of Q4_K and Q5_K take 8.

    packed   the tiles, one after the other; a tile is a row of units, by input features
    unit     header (the scales of its groups), then its groups' codes; one group, or eight with a common scale
    group    1024 codes [8 words][32 output features][4 input features]: the low 4 bits of the first half of them with
             those of the second half in one byte, then the bits above them, eight or four codes in one byte
"""

from dataclasses import dataclass

import numpy as np

from paceline.engine.cpu.kernels.tiles import WIDTH

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

Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K = range(8)


@dataclass(frozen=True, slots=True)
class Format:
    """One format."""

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
    zero: int | None = None

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


FORMATS = (
    Format("Q4_0", Q4_0, 4, 1, HALF_BYTES, 18, 8),
    Format("Q4_1", Q4_1, 4, 1, 2 * HALF_BYTES, 20),
    Format("Q5_0", Q5_0, 5, 1, HALF_BYTES, 22, 16),
    Format("Q5_1", Q5_1, 5, 1, 2 * HALF_BYTES, 24),
    Format("Q8_0", Q8_0, 8, 1, HALF_BYTES, 34, 128),
    # Scale and offset of the unit as 16 bits, then those of each group as 8.
    Format("Q4_K", Q4_K, 4, 8, 2 * HALF_BYTES + 16 * WIDTH, 144),
    Format("Q5_K", Q5_K, 5, 8, 2 * HALF_BYTES + 16 * WIDTH, 176),
    # A scale for every 16 features.
    Format("Q6_K", Q6_K, 6, 8, HALF_BYTES + 16 * WIDTH, 210, 32),
)
BY_NAME = {each.name: each for each in FORMATS}
# The same for kernels, by a format's number.
BITS = np.array([each.bits for each in FORMATS])
UNIT_GROUPS = np.array([each.unit_groups for each in FORMATS])
HEADER_BYTES = np.array([each.header_bytes for each in FORMATS])
UNIT_BYTES = np.array([each.unit_bytes for each in FORMATS])
CHUNK_BYTES = np.array([CHUNK_GROUPS // each.unit_groups * each.unit_bytes for each in FORMATS])
BLOCK_BYTES = np.array([each.block_bytes for each in FORMATS])
