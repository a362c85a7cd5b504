"""The formats of GGUF's quantized blocks.

A weight is scale * code + offset, or scale * (code - zero). A group is 32 features; a block has one group, or eight whose
scales have common factors.
"""

from typing import NamedTuple

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType


class BlockFormat(NamedTuple):
    # As gguf has it.
    name: str
    bits: int
    num_groups: int
    # Of a block: 16-bit numbers, which are the scale and perhaps the offset, and 8-bit factors of the groups.
    num_halves: int
    num_factors: int
    # The code of weight 0, in formats that have no offsets.
    zero: int | None = None
    scales_per_group: int = 1

    @property
    def type(self) -> GGMLQuantizationType:
        return GGMLQuantizationType[self.name]

    @property
    def num_bytes(self) -> int:
        return int(GGML_QUANT_SIZES[self.type][1])


BLOCK_FORMATS = (
    BlockFormat("Q4_0", 4, 1, 1, 0, zero=8),
    BlockFormat("Q4_1", 4, 1, 2, 0),
    BlockFormat("Q5_0", 5, 1, 1, 0, zero=16),
    BlockFormat("Q5_1", 5, 1, 2, 0),
    BlockFormat("Q8_0", 8, 1, 1, 0, zero=128),
    # A file packs scale and offset of a group into 6 bits each.
    BlockFormat("Q4_K", 4, 8, 2, 16),
    BlockFormat("Q5_K", 5, 8, 2, 16),
    BlockFormat("Q6_K", 6, 8, 1, 16, zero=32, scales_per_group=2),
)
