"""Paged attention on a CPU: the KV cache's arrays, and which blocks each row of a batch attends to.

Keys and values are float32 also when the weights are bfloat16: the kernel multiplies in float32 anyway, and so scores
keep their precision. The kernel (`kernels.attention`) is batch invariant.
"""

import math
import mmap
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import Span
from paceline.engine.cpu.kernels.attention import PRODUCTS_TO_SHARE, TILE_ROWS, attend, attend_shared
from paceline.engine.models.config import ModelConfig
from paceline.engine.threads import num_workers


@dataclass(frozen=True, slots=True)
class HeadRotation:
    """A layer's norm and rotation of queries and keys."""

    cos: Array  # [max_model_len, head_dim] float32
    sin: Array  # [max_model_len, head_dim] float32; the first half of head_dim is negated
    # Norm weights of queries and keys: [head_dim] float32, or [0] if the model has none.
    query_norm: Array
    key_norm: Array
    norm_eps: float


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """A batch's arrays for attention. All layers use the same plan."""

    positions: Array  # [num_rows without padding]
    slots: Array  # [num_rows without padding]: block * block_size + offset in the block
    tiles: Array  # [num_tiles, 4]: first row, number of rows, position, start of the sequence's blocks in `blocks`
    blocks: Array  # [sum of table sizes]: the sequences' block tables, one after the other
    queries: Array  # [kv_heads, num_rows * heads / kv_heads, head_dim] float32: the kernel's working memory
    # Whether the work is large enough to share it among all cores.
    is_shared: bool


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
        self._cache = [
            (_make_zeros((*shape, config.head_dim, block_size)), _make_zeros((*shape, block_size, config.head_dim)))
            for _ in range(num_layers or config.num_layers)
        ]

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        """Copies blocks' keys and values in all layers."""
        for keys, values in self._cache:
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

    def forward(self, layer: int, qkv: Array, plan: AttentionPlan, rotation: HeadRotation) -> Array:
        """Writes the rows' keys and values into the cache, then computes attention.

        qkv: [num_rows, (heads + 2 * kv_heads) * head_dim]. Returns [num_rows, heads * head_dim]; padding rows are 0.
        """
        out = np.zeros((qkv.shape[0], self._heads * self._head_dim), qkv.dtype)
        arguments: tuple[Any, ...] = (
            qkv.reshape(qkv.shape[0], -1, self._head_dim),
            plan.positions, plan.slots, plan.tiles, plan.blocks,
            (rotation.cos, rotation.sin), (rotation.query_norm, rotation.key_norm), np.float32(rotation.norm_eps),
            self._cache[layer], plan.queries, out,
        )  # fmt: skip
        if plan.is_shared and num_workers() > 1:
            attend_shared(*arguments, num_workers())
        else:
            attend(*arguments)
        return out
