"""Paged attention on a CPU: the KV cache's layout, and which blocks each token attends to.

Keys and values have the model's dtype or int8. The kernel (`kernels.attention`) multiplies in float32 and is batch
invariant. A block holds all layers, so that it fills large pages and takes memory only when a sequence needs it. It is a
row of equal parts:

    keys of layer 0 | its values | keys of layer 1 | its values | ... | int8: the scales of all layers

A block's place is its first part's number. In a view that begins at a layer's keys, the same place finds that layer.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cache.state_pool import StatePool
from paceline.engine.cpu.kernels.attention import PRODUCTS_TO_SHARE, TILE_ROWS, AttentionPlan
from paceline.engine.cpu.kernels.cache import Cache, FloatCache, Int8Cache
from paceline.engine.cpu.kernels.memory import map_region

# By the names that settings use.
CACHE_DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(np.uint16),
    "int8": np.dtype(np.int8),
}


class KvShape(Protocol):
    """The numbers of a model, or of a part of its layers, that make up the cache."""

    @property
    def num_layers(self) -> int: ...
    @property
    def num_heads(self) -> int: ...
    @property
    def num_kv_heads(self) -> int: ...
    @property
    def head_dim(self) -> int: ...


class CacheLayout:
    """Blocks of float32, or bfloat16 as uint16."""

    def __init__(self, config: KvShape, num_layers: int, block_size: int, dtype: np.dtype[Any]) -> None:
        self._num_layers = num_layers
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._block_size = block_size
        self._dtype = dtype

    @property
    def num_parts(self) -> int:
        return 2 * self._num_layers

    @property
    def block_bytes(self) -> int:
        return self.num_parts * self._kv_heads * self._head_dim * self._block_size * self._dtype.itemsize

    def split(self, memory: Array) -> list[Cache]:
        """Returns each layer's cache. memory: [num_blocks * block_bytes] uint8."""
        heads = memory.view(self._dtype).reshape(-1, self._kv_heads, self._head_dim * self._block_size)
        keys = heads.reshape(*heads.shape[:2], self._head_dim, self._block_size)
        values = heads.reshape(*heads.shape[:2], self._block_size, self._head_dim)
        return [FloatCache(keys[2 * layer :], values[2 * layer + 1 :]) for layer in range(self._num_layers)]


class Int8CacheLayout(CacheLayout):
    """Blocks of int8 with a scale for each token, KV head and matrix, in whole parts so that a place leads to them."""

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


def make_layout(config: KvShape, num_layers: int, block_size: int, dtype: np.dtype[Any]) -> CacheLayout:
    kind = Int8CacheLayout if dtype == np.int8 else CacheLayout
    return kind(config, num_layers, block_size, dtype)


# A sequence with this many rows makes two tiles, so that cores share the work evenly (three KV heads on two cores).
ROWS_TO_DIVIDE = 4


def _tile_rows(num_rows: int) -> int:
    num_tiles = max(-(-num_rows // TILE_ROWS), 2 if num_rows >= ROWS_TO_DIVIDE else 1)
    return -(-num_rows // num_tiles)


class CpuPagedAttention:
    def __init__(
        self,
        config: KvShape,
        num_blocks: int,
        block_size: int,
        dtype: np.dtype[Any],
        num_layers: int | None = None,
    ) -> None:
        layout = make_layout(config, num_layers or config.num_layers, block_size, dtype)
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._block_size = block_size
        self._block_parts = layout.num_parts
        self.states = StatePool()
        num_bytes = num_blocks * layout.block_bytes
        memory = map_region(num_bytes)[:num_bytes]
        self._blocks = memory.reshape(num_blocks, -1)
        self.cache = layout.split(memory)  # each layer's

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        self._blocks[destinations] = self._blocks[sources]

    def plan(
        self, spans: Sequence[TokenSpan], context: Sequence[TokenSpan] = (), sees_ahead: bool = False
    ) -> AttentionPlan:
        """Plans the rows of a batch.

        context: spans whose rows come before those of `spans`, and only write their keys and values;
        sees_ahead: whether a span's rows see those behind them, too.
        """
        tiles, products = list[tuple[int, ...]](), 0
        blocks: list[int] = []
        for span in spans:
            end = span.position + span.num_tokens if sees_ahead else 0
            tile_rows = _tile_rows(span.num_tokens)
            for done in range(0, span.num_tokens, tile_rows):
                num_rows = min(tile_rows, span.num_tokens - done)
                tiles.append((span.first_token + done, num_rows, span.position + done, len(blocks), end))
            products += span.num_tokens * (span.position + span.num_tokens)
            blocks += span.blocks
        written = [*context, *spans]
        positions = [span.position + np.arange(span.num_tokens) for span in written]
        slots = [
            self._places(span.blocks)[position // self._block_size] * self._block_size + position % self._block_size
            for span, position in zip(written, positions, strict=True)
        ]
        num_queries = sum(span.num_tokens for span in written) * (self._heads // self._kv_heads)
        return AttentionPlan(
            positions=np.concatenate(positions),
            slots=np.concatenate(slots),
            tiles=np.array(tiles, np.int64).reshape(-1, 5),
            places=self._places(blocks),
            queries=np.empty((self._kv_heads, num_queries, self._head_dim), np.float32),
            is_shared=products >= PRODUCTS_TO_SHARE,
        )

    def _places(self, blocks: list[int]) -> Array:
        return np.asarray(blocks, np.int64) * self._block_parts
