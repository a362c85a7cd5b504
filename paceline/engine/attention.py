"""Paged attention on CPU, with the same bits whatever runs beside a row.

Keys and values lie in blocks, per KV head one behind the other, so that the blocks of a
sequence that lie side by side are read in place:

    cache[layer]: [2 (keys, values), kv_heads, num_blocks, block_size, head_dim], float32

float32 also under bfloat16 weights: products of few rows are no slower than in bfloat16
here, and scores keep their precision.

A row's result must not depend on how many rows or sequences run together. The library's
fused attention keeps that where the number of its keys and the way its rows are grouped
are the same for a row each time. So rows are taken in tiles that never cross the end of a
block: a row's keys always reach to the end of its own block, whoever shares its tile. And the
query heads of a KV head are rows of one product, padded to a multiple of four: a remainder
would take another path in the library.
"""

import functools
import math
import mmap
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from paceline.engine.config import ModelConfig

QUERY_MULTIPLE = 4


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence in a batch."""

    first_row: int
    num_rows: int
    # Position of the first row in its sequence: tokens in the cache before it.
    position: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows of one span within one block: M queries per KV head, L keys up to the block's end.

    Or two of that shape, of two sequences, computed by one call: the KV heads of one seldom divide evenly
    among the cores.
    """

    num_queries: int  # M
    num_keys: int  # L
    # First block of each of the one or two, whose blocks lie side by side; or else all blocks of the one.
    starts: tuple[int, ...]
    scattered: torch.Tensor | None
    mask: torch.Tensor  # [1 or 2, 1, M, L], 0 or -inf

    @property
    def count(self) -> int:
        return self.mask.shape[0]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything about a batch that all layers share."""

    write_slots: torch.Tensor  # [num_rows * 2 * kv_heads] into the cache's rows of head_dim
    query_index: torch.Tensor  # [sum of kv_heads * M over tiles] into the rows of qkv
    tiles: list[Tile]
    output_index: torch.Tensor  # [num_rows * heads] into the tiles' results laid end to end


def _make_zeros(shape: tuple[int, ...]) -> torch.Tensor:
    """A tensor of pages that become resident when they are first written to, each by itself.

    torch's zeros touch all pages at once, and numpy's ask for huge ones: a new block then clears two megabytes
    in each place it has a part in, 180 of them for SmolLM2 (100 ms, measured; 1.5 ms with small pages).
    """
    memory = mmap.mmap(-1, 4 * math.prod(shape), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=torch.float32).view(shape)


class PagedAttention:
    """The cache tensors, and attention over them."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, num_layers: int | None = None) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._num_blocks = num_blocks
        self._block_size = block_size
        shape = (2, config.num_kv_heads, num_blocks, block_size, config.head_dim)
        self._cache = [_make_zeros(shape) for _ in range(num_layers or config.num_layers)]
        # Both are small, depend on few numbers, and come again in every step.
        self._layout = functools.cache(self._make_layout)
        self._last_mask = functools.lru_cache(maxsize=512)(self._make_last_mask)

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        """Copies blocks' keys and values, in all layers."""
        for cache in self._cache:
            cache[:, :, destinations] = cache[:, :, sources]

    def plan(self, spans: list[Span], num_rows: int) -> AttentionPlan:
        """Index tensors for a batch of `num_rows` rows, of which the last ones may be padding."""
        queries, tiles, offset = [], [], 0
        outputs = np.zeros((num_rows, self._heads), dtype=np.int64)
        for parts in self._pair([part for span in spans for part in self._cut(span)]):
            tiles.append(self._tile(parts))
            for part in parts:
                query, output = self._layout(part.num_rows)
                queries.append(query + part.first_row * (self._heads + 2 * self._kv_heads))
                outputs[part.first_row : part.first_row + part.num_rows] = output + offset
                offset += len(query)
        return AttentionPlan(
            write_slots=torch.from_numpy(self._write_slots(spans)),
            query_index=torch.from_numpy(np.concatenate(queries)),
            tiles=tiles,
            output_index=torch.from_numpy(outputs.reshape(-1)),
        )

    def forward(self, layer: int, qkv: torch.Tensor, plan: AttentionPlan) -> torch.Tensor:
        """Writes the rows' keys and values, then attends.

        qkv: [num_rows, heads + 2 * kv_heads, head_dim] float32, queries scaled. Returns [num_rows, heads * head_dim].
        """
        cache = self._cache[layer]
        num_rows = qkv.shape[0]
        written = plan.write_slots.numel() // (2 * self._kv_heads)
        new = qkv[:written, self._heads :].reshape(-1, self._head_dim)
        cache.view(-1, self._head_dim).index_copy_(0, plan.write_slots, new)
        queries = qkv.view(-1, self._head_dim).index_select(0, plan.query_index)
        keys, values = cache[0], cache[1]
        parts, start = [], 0
        for tile in plan.tiles:
            end = start + tile.count * self._kv_heads * tile.num_queries
            parts.append(self._attend(queries[start:end], keys, values, tile))
            start = end
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.index_select(0, plan.output_index).view(num_rows, -1)

    def _attend(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, tile: Tile) -> torch.Tensor:
        """queries: [count * kv_heads * M, head_dim]; keys, values: a layer's. Returns the same shape."""
        mixed = functional.scaled_dot_product_attention(
            queries.view(tile.count, self._kv_heads, tile.num_queries, self._head_dim),
            self._read(keys, tile),
            self._read(values, tile),
            attn_mask=tile.mask,
            scale=1.0,
        )
        return mixed.reshape(-1, self._head_dim)

    def _read(self, side: torch.Tensor, tile: Tile) -> torch.Tensor:
        """A tile's part of `side`: [kv_heads, num_blocks, block_size, head_dim]. [count, kv_heads, L, head_dim]."""
        shape = (tile.count, self._kv_heads, tile.num_keys, self._head_dim)
        if tile.scattered is not None:
            return side[:, tile.scattered].view(shape)
        per_head, per_block, per_token, _ = side.stride()
        strides = ((tile.starts[-1] - tile.starts[0]) * per_block, per_head, per_token, 1)
        return side.as_strided(shape, strides, side.storage_offset() + tile.starts[0] * per_block)

    def _cut(self, span: Span) -> list[Span]:
        """Parts that do not cross the end of a block."""
        parts, done = [], 0
        while done < span.num_rows:
            position = span.position + done
            num_rows = min(span.num_rows - done, self._block_size - position % self._block_size)
            parts.append(Span(span.first_row + done, num_rows, position, span.blocks))
            done += num_rows
        return parts

    def _pair(self, parts: list[Span]) -> list[list[Span]]:
        """Parts of equal shape two by two, where both have their blocks side by side; the others alone."""
        groups: list[list[Span]] = []
        single: dict[tuple[int, int], list[Span]] = {}
        for part in parts:
            rank = part.position // self._block_size
            if not _are_side_by_side(part.blocks[: rank + 1]):
                groups.append([part])
            elif (group := single.pop((part.num_rows, rank), None)) is not None:
                group.append(part)
                group.sort(key=lambda each: each.blocks[0])
            else:
                groups.append([part])
                single[part.num_rows, rank] = groups[-1]
        return groups

    def _tile(self, parts: list[Span]) -> Tile:
        """Of one part, or of two of equal shape."""
        rank = parts[0].position // self._block_size
        num_rows, num_keys = parts[0].num_rows, (rank + 1) * self._block_size
        num_queries = self._layout(num_rows)[0].size // self._kv_heads
        mask = torch.zeros((len(parts), 1, num_queries, num_keys))
        for place, part in enumerate(parts):
            mask[place, 0, :, -self._block_size :] = self._last_mask(num_rows, part.position % self._block_size)
        blocks = parts[0].blocks[: rank + 1]
        return Tile(
            num_queries=num_queries,
            num_keys=num_keys,
            starts=tuple(part.blocks[0] for part in parts),
            scattered=None if _are_side_by_side(blocks) else torch.tensor(blocks),
            mask=mask,
        )

    def _make_layout(self, num_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where a tile's queries come from, [kv_heads * M] rows of qkv behind its first, and where its results
        lie, [num_rows, heads]."""
        per_kv, kv_heads = self._heads // self._kv_heads, self._kv_heads
        num_queries = -(-num_rows * per_kv // QUERY_MULTIPLE) * QUERY_MULTIPLE
        # Padding repeats the last query.
        row, head = np.divmod(np.minimum(np.arange(num_queries), num_rows * per_kv - 1), per_kv)  # [M]
        kv_head = np.arange(kv_heads)[:, None]
        query = row * (self._heads + 2 * kv_heads) + kv_head * per_kv + head  # [kv_heads, M]
        inside = np.arange(num_rows)[:, None, None] * per_kv + np.arange(per_kv)  # [num_rows, 1, per_kv]
        output = kv_head * num_queries + inside  # [num_rows, kv_heads, per_kv]
        return query.reshape(-1), output.reshape(num_rows, -1)

    def _make_last_mask(self, num_rows: int, offset: int) -> torch.Tensor:
        """Over the last block, of rows that begin `offset` into it: [M, block_size]."""
        num_queries = self._layout(num_rows)[0].size // self._kv_heads
        row = np.minimum(np.arange(num_queries) // (self._heads // self._kv_heads), num_rows - 1)  # [M]
        hidden = np.arange(self._block_size) > offset + row[:, None]
        return torch.from_numpy(np.where(hidden, np.float32(-np.inf), np.float32(0)))

    def _write_slots(self, spans: list[Span]) -> NDArray[np.int64]:
        """Where each row's keys and values go, as rows of head_dim in the flattened cache."""
        slots = []
        for span in spans:
            position = span.position + np.arange(span.num_rows)
            block = np.asarray(span.blocks)[position // self._block_size]
            place = block * self._block_size + position % self._block_size
            side = np.arange(2 * self._kv_heads) * self._num_blocks * self._block_size
            slots.append(place[:, None] + side)  # [n, 2 * kv_heads]
        return np.concatenate(slots).reshape(-1)


def _are_side_by_side(blocks: list[int]) -> bool:
    return blocks[-1] - blocks[0] == len(blocks) - 1 and blocks == list(range(blocks[0], blocks[-1] + 1))
