"""Random matrices in the formats of GGUF files."""

import numpy as np
from gguf import GGMLQuantizationType

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME
from paceline.engine.models.gguf.tensors import FileTensor

# Where a block's float16 scales are: first byte, and how many.
_SCALES = {"Q6_K": (208, 1), "Q4_0": (0, 1), "Q5_0": (0, 1), "Q8_0": (0, 1)}
_SCALE_AND_OFFSET = (0, 2)


def random_blocks(name: str, out_features: int, in_features: int, seed: int = 0) -> FileTensor:
    """Any bits are weights, but for scales, which must be numbers."""
    generator, fmt = np.random.default_rng(seed), BY_NAME[name]
    blocks = generator.integers(0, 256, (out_features * in_features // fmt.block_features, fmt.block_bytes), np.uint8)
    first, count = _SCALES.get(name, _SCALE_AND_OFFSET)
    scales = (generator.random((blocks.shape[0], count)) * 0.02 + 0.001) * generator.choice(
        [-1, 1], (blocks.shape[0], 1)
    )
    blocks[:, first : first + 2 * count] = scales.astype(np.float16).view(np.uint8)
    return FileTensor(GGMLQuantizationType[name], (out_features, in_features), blocks.reshape(out_features, -1))


def rounded_rows(x: Array) -> tuple[Array, Array]:
    """x: [num_rows, in_features] float32 -> whole numbers as float32, and scales [num_rows, groups of 32]."""
    groups = x.reshape(x.shape[0], -1, 32)
    peaks = np.maximum(np.abs(groups).max(2), np.float32(2.0**-100))
    numbers = np.rint(groups * (np.float32(127) / peaks)[:, :, None])
    return numbers.reshape(x.shape), peaks * np.float32(1 / 127)
