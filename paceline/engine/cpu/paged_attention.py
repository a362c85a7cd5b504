"""Paged attention on a CPU: the KV cache's arrays, and which blocks each row of a batch attends to.

Keys and values are float32 also when the weights are bfloat16: the kernel multiplies in float32 anyway, and so scores
keep their precision. The kernel (`kernels.attention`) is batch invariant.
"""

import math
import mmap

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import Span
from paceline.engine.cpu.kernels.attention import PRODUCTS_TO_SHARE, TILE_ROWS, AttentionPlan
from paceline.engine.models.config import ModelConfig


def _make_zeros(shape: tuple[int, ...]) -> Array:
    """A float32 array of zeros. Each small page becomes resident at the first write to it.

    torch.zeros touches all pages at once. np.zeros asks for large pages: then the first write to a block clears 2 MiB
    for each array that has a part of the block.
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(memory, dtype=np.float32).reshape(shape)


class CpuPagedAttention:
    """The cache's arrays, and attention over them."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, num_layers: int | None = None) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._block_size = block_size
        shape = (num_blocks, config.num_kv_heads)
        # Keys and values of each layer; `kernels.attention` gives the shapes.
        self.cache = [
            (_make_zeros((*shape, config.head_dim, block_size)), _make_zeros((*shape, block_size, config.head_dim)))
            for _ in range(num_layers or config.num_layers)
        ]

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        """Copies blocks' keys and values in all layers."""
        for keys, values in self.cache:
            keys[destinations] = keys[sources]
            values[destinations] = values[sources]

    def plan(self, spans: list[Span]) -> AttentionPlan:
        """Plans where the rows' keys and values are written, and which rows form a tile of attention."""
        positions, tiles, products = [], [], 0
        blocks: list[int] = []
        for span in spans:
            positions.append(span.position + np.arange(span.num_rows))
            for done in range(0, span.num_rows, TILE_ROWS):
                num_rows = min(TILE_ROWS, span.num_rows - done)
                tiles.append((span.first_row + done, num_rows, span.position + done, len(blocks)))
            products += span.num_rows * (span.position + span.num_rows)
            blocks += span.blocks
        slots = [
            np.asarray(span.blocks)[position // self._block_size] * self._block_size + position % self._block_size
            for span, position in zip(spans, positions, strict=True)
        ]
        num_queries = sum(span.num_rows for span in spans) * (self._heads // self._kv_heads)
        return AttentionPlan(
            positions=np.concatenate(positions),
            slots=np.concatenate(slots),
            tiles=np.array(tiles),
            blocks=np.array(blocks),
            queries=np.empty((self._kv_heads, num_queries, self._head_dim), np.float32),
            is_shared=products >= PRODUCTS_TO_SHARE,
        )
