"""Random weights in GGUF formats, with a standard deviation near `STD` and a mean near 0.

Made from random bits if possible: quantizing billions of numbers would take minutes.
"""

from math import prod

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

STD = 0.02
# Number of blocks that repeat over a tensor. It has no divisor in common with the number of blocks in a row,
# which is 2^a 3^b, so no two rows of a vocabulary are alike.
NUM_BLOCKS = 131_101
# Weights in a repeated block of types whose own are shorter.
SHORT_BLOCK = 32


class RandomBlocks:
    def __init__(self, kind: GGMLQuantizationType) -> None:
        self._kind = kind
        self._random = np.random.default_rng(kind)
        self._blocks = self._make()  # [NUM_BLOCKS, bytes of a block] uint8

    def tensor(self, shape: tuple[int, int]) -> np.ndarray:
        """Returns [rows, bytes of a row] uint8. Every call begins at another block."""
        rolled = np.roll(self._blocks, self._random.integers(NUM_BLOCKS), axis=0)
        return np.resize(rolled, num_bytes(self._kind, shape)).reshape(shape[0], -1)

    def _make(self) -> np.ndarray:
        if self._kind == GGMLQuantizationType.Q4_K:
            return self._q4_k()
        if self._kind == GGMLQuantizationType.Q6_K:
            return self._q6_k()
        numbers = self._random.standard_normal((NUM_BLOCKS, SHORT_BLOCK), np.float32) * STD
        return quants.quantize(numbers, self._kind).view(np.uint8).reshape(NUM_BLOCKS, -1)

    def _q4_k(self) -> np.ndarray:
        """A weight is d * scale * q - dmin * minimum: here scale and minimum are equal, and dmin is 7.5 d."""
        scales = self._random.integers(32, 64, (NUM_BLOCKS, 8), np.uint8)
        d = STD / _rms(scales) / _rms(np.arange(16) - 7.5)
        low, high = scales[:, :4], scales[:, 4:]
        # Six bits each: the first four whole, of the others the upper two bits in what those leave free.
        firsts = low | high >> 4 << 6
        packed = np.concatenate([firsts, firsts, high & 15 | (high & 15) << 4], axis=1)
        halves = np.tile(np.array([d, 7.5 * d], np.float16).view(np.uint8), (NUM_BLOCKS, 1))
        return np.concatenate([halves, packed, self._bytes(128)], axis=1)

    def _q6_k(self) -> np.ndarray:
        """A weight is d * scale * (q - 32): scales have random signs, since the mean of q is not 32."""
        scales = self._random.integers(64, 128, (NUM_BLOCKS, 16), np.int8)
        d = STD / _rms(scales) / _rms(np.arange(64) - 32)
        scales *= self._random.choice(np.array([-1, 1], np.int8), scales.shape)
        half = np.tile(np.array([d], np.float16).view(np.uint8), (NUM_BLOCKS, 1))
        return np.concatenate([self._bytes(192), scales.view(np.uint8), half], axis=1)

    def _bytes(self, count: int) -> np.ndarray:
        return self._random.integers(0, 256, (NUM_BLOCKS, count), np.uint8)


def num_bytes(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """Returns the size of a tensor."""
    weights, size = GGML_QUANT_SIZES[kind]
    return prod(shape) // weights * size


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values.astype(np.float64)))))
