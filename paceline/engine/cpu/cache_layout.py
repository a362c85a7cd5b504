"""Where a block of the KV cache has its keys and values.

A block is a row of equal parts. Each layer has one part of keys and one of values:

    keys of layer 0 | its values | keys of layer 1 | its values | ... | int8: the scales of all layers

A block's place is its first part's number. With a view that begins at a layer's first keys, the same place leads to the
keys of this layer.
"""

from typing import Any

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.cache import Cache, FloatCache, Int8Cache
from paceline.engine.models.config import ModelConfig

# As arrays hold them, by the names that settings use.
CACHE_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}


class CacheLayout:
    """Blocks of float32, or of bfloat16 as uint16."""

    def __init__(self, config: ModelConfig, num_layers: int, block_size: int, dtype: np.dtype[Any]) -> None:
        self._num_layers = num_layers
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._block_size = block_size
        self._dtype = dtype

    @property
    def num_parts(self) -> int:
        """Parts of a block: from its place to the next one's."""
        return 2 * self._num_layers

    @property
    def block_bytes(self) -> int:
        return self.num_parts * self._kv_heads * self._head_dim * self._block_size * self._dtype.itemsize

    def split(self, memory: Array) -> list[Cache]:
        """Each layer's part of the cache, over memory: [num_blocks * block_bytes] uint8."""
        heads = memory.view(self._dtype).reshape(-1, self._kv_heads, self._head_dim * self._block_size)
        keys = heads.reshape(*heads.shape[:2], self._head_dim, self._block_size)
        values = heads.reshape(*heads.shape[:2], self._block_size, self._head_dim)
        return [FloatCache(keys[2 * layer :], values[2 * layer + 1 :]) for layer in range(self._num_layers)]


class Int8CacheLayout(CacheLayout):
    """Blocks of int8, with a scale for each token, KV head and matrix: head_dim / 4 matrices' scales fill a part.

    They take whole parts, so that a place leads to the scales too.
    """

    @property
    def num_parts(self) -> int:
        num_matrices = super().num_parts
        return num_matrices + -(-4 * num_matrices // self._head_dim)

    def split(self, memory: Array) -> list[Cache]:
        scales = memory.view(np.float32).reshape(-1, self._kv_heads, self._block_size)
        scales = scales[super().num_parts * self._head_dim // 4 :]
        return [
            Int8Cache(matrices.keys, matrices.values, scales[2 * layer :], scales[2 * layer + 1 :])
            for layer, matrices in enumerate(super().split(memory))
        ]


def make_layout(config: ModelConfig, num_layers: int, block_size: int, dtype: np.dtype[Any]) -> CacheLayout:
    """`dtype`: one of CACHE_DTYPES."""
    kind = Int8CacheLayout if dtype == np.int8 else CacheLayout
    return kind(config, num_layers, block_size, dtype)
