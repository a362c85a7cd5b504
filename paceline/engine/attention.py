"""Paged attention on CPU, with the same bits whatever runs beside a row.

Keys and values lie in blocks, contiguous per KV head, so that one batched product over
(blocks x kv_heads) reads them without a gather where the blocks wanted lie side by side:

    cache[layer]: [2 (keys, values), num_blocks, kv_heads, block_size, head_dim], float32

float32 also under bfloat16 weights: products of few rows are no slower than in bfloat16
here, and scores keep their precision.

A row's result must not depend on how many rows or sequences run together. So each
product has the fixed size of a block, a row's blocks are summed in the order of their
rank, and what a row may not see adds exact zeros behind its own. (torch sums an outer
dimension in an order fixed by the index only where what lies beside it fills whole vectors,
as `mixed` does; `totals` is too narrow, and a cumulative sum keeps the order.) Small things
(queries, partial results) are moved to fit the blocks; keys and values stay in place.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.engine.config import ModelConfig

# Rows of one prefill are taken in tiles, so that early rows do not pay for late keys.
TILE_ROWS = 64
# Sequences with up to this many rows share one batched product.
SMALL_ROWS = 8
# Row counts of a product are padded to a multiple of this: fewer rows take another path in the library.
ROW_MULTIPLE = 8


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive rows of one sequence in a batch."""

    first_row: int
    num_rows: int
    # Position of the first row in its sequence: tokens in the cache before it.
    position: int
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class RankGrid:
    """Which of the B blocks is whose, and at which rank in its span."""

    owner: torch.Tensor  # [B] span of each block
    blocks: torch.Tensor  # [ranks * S] block of each rank and span
    exists: torch.Tensor  # [ranks, S, 1, 1], 0 where a span has no block of that rank


@dataclass(frozen=True, slots=True)
class Group:
    """Spans that share one batched product. B blocks, S spans, M padded rows x query heads per KV head."""

    rows: int  # M
    num_spans: int  # S
    query_index: torch.Tensor  # [B * kv_heads * M] into the rows of qkv
    blocks: slice | torch.Tensor  # the B blocks in the cache
    mask: torch.Tensor  # [B * kv_heads, M, block_size], 0 or -inf
    grid: RankGrid | None  # None for a single span whose blocks come in order


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything about a batch that all layers share."""

    write_slots: torch.Tensor  # [num_rows * 2 * kv_heads] into the cache's rows of head_dim
    groups: list[Group]
    output_index: torch.Tensor  # [num_rows * heads] into the groups' results laid end to end


class PagedAttention:
    """The cache tensors, and attention over them."""

    def __init__(self, config: ModelConfig, num_blocks: int, block_size: int, num_layers: int | None = None) -> None:
        self._heads = config.num_heads
        self._kv_heads = config.num_kv_heads
        self._head_dim = config.head_dim
        self._queries_per_kv = config.num_heads // config.num_kv_heads
        self._num_blocks = num_blocks
        self._block_size = block_size
        shape = (2, num_blocks, config.num_kv_heads, block_size, config.head_dim)
        # numpy's zeros are untouched pages: memory becomes resident as blocks are first used.
        self._cache = [
            torch.from_numpy(np.zeros(shape, dtype=np.float32)) for _ in range(num_layers or config.num_layers)
        ]

    def copy_block(self, source: int, destination: int) -> None:
        """Copies a block's keys and values, in all layers."""
        for cache in self._cache:
            cache[:, destination] = cache[:, source]

    def plan(self, spans: list[Span], num_rows: int) -> AttentionPlan:
        """Index tensors for a batch of `num_rows` rows, of which the last ones may be padding."""
        small = [span for span in spans if span.num_rows <= SMALL_ROWS]
        tiles = [tile for span in spans if span.num_rows > SMALL_ROWS for tile in _tiles(span)]
        members = ([small] if small else []) + [[tile] for tile in tiles]
        output = np.zeros((num_rows, self._heads), dtype=np.int64)
        groups, offset = [], 0
        for member_spans in members:
            groups.append(self._plan_group(member_spans, output, offset))
            offset += groups[-1].num_spans * self._kv_heads * groups[-1].rows
        return AttentionPlan(
            write_slots=torch.from_numpy(self._write_slots(spans)),
            groups=groups,
            output_index=torch.from_numpy(output.reshape(-1)),
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
        flat = qkv.view(-1, self._head_dim)
        parts = [self._attend(cache, flat, group) for group in plan.groups]
        joined = parts[0] if len(parts) == 1 else torch.cat(parts)
        return joined.index_select(0, plan.output_index).view(num_rows, -1)

    def _attend(self, cache: torch.Tensor, flat: torch.Tensor, group: Group) -> torch.Tensor:
        """Returns [S * kv_heads * M, head_dim]."""
        kv_heads, rows, block_size = self._kv_heads, group.rows, self._block_size
        keys = cache[0][group.blocks].view(-1, block_size, self._head_dim)  # [B * kv_heads, block_size, head_dim]
        values = cache[1][group.blocks].view(-1, block_size, self._head_dim)
        queries = flat.index_select(0, group.query_index).view(-1, rows, self._head_dim)
        scores = torch.baddbmm(group.mask, queries, keys.transpose(1, 2)).view(-1, kv_heads, rows, block_size)
        grid, shape = group.grid, (-1, group.num_spans, kv_heads, rows)
        if grid is None:
            scores -= scores.amax(dim=(0, 3), keepdim=True)
        else:
            highest = scores.amax(dim=-1)  # [B, kv_heads, M]
            per_span = highest.index_select(0, grid.blocks).view(shape).amax(dim=0)
            scores -= per_span.index_select(0, grid.owner).unsqueeze(-1)
        weights = scores.exp_()
        totals = weights.sum(dim=-1)  # [B, kv_heads, M]
        mixed = torch.bmm(weights.view(-1, rows, block_size), values)
        if len(totals) == 1:
            return mixed.div_(totals.view(-1, rows, 1)).view(-1, self._head_dim)
        mixed = mixed.view(-1, kv_heads, rows, self._head_dim)  # [B, kv_heads, M, head_dim]
        if grid is not None:
            totals = totals.index_select(0, grid.blocks).view(shape) * grid.exists
            mixed = mixed.index_select(0, grid.blocks).view(*shape, self._head_dim) * grid.exists.unsqueeze(-1)
        return (mixed.sum(dim=0) / totals.cumsum(dim=0)[-1].unsqueeze(-1)).view(-1, self._head_dim)

    def _plan_group(self, spans: list[Span], output: NDArray[np.int64], offset: int) -> Group:
        """Plans one product and fills `output` with where its rows' results will lie."""
        per_kv, kv_heads, block_size = self._queries_per_kv, self._kv_heads, self._block_size
        most = max(span.num_rows for span in spans)
        rows = -(-most * per_kv // ROW_MULTIPLE) * ROW_MULTIPLE
        padded_row = np.arange(rows) // per_kv  # [M] row within the span
        padded_head = np.arange(rows) % per_kv  # [M] query head within the KV head
        head = np.arange(kv_heads)[:, None] * per_kv + padded_head  # [kv_heads, M]

        counts = np.array([span.num_rows for span in spans])[:, None]
        is_real = padded_row < counts  # [S, M]
        row = np.where(is_real, padded_row, 0) + np.array([span.first_row for span in spans])[:, None]
        position = np.where(is_real, padded_row + np.array([span.position for span in spans])[:, None], 0)
        query = row[:, None, :] * (self._heads + 2 * kv_heads) + head  # [S, kv_heads, M]

        lengths = [-(-(span.position + span.num_rows) // block_size) for span in spans]
        owner, rank, blocks = _arrange_blocks(spans, lengths)
        key_position = rank[:, None] * block_size + np.arange(block_size)  # [B, block_size]
        hidden = key_position[:, None, :] > position[owner][:, :, None]  # [B, M, block_size]
        mask = np.where(hidden, np.float32(-np.inf), np.float32(0)).repeat(kv_heads, axis=0)

        lane = offset + (np.arange(len(spans))[:, None] * kv_heads + np.arange(kv_heads)) * rows  # [S, kv_heads]
        for index, span in enumerate(spans):
            local = np.arange(span.num_rows)[:, None, None] * per_kv + np.arange(per_kv)  # [n, 1, per_kv]
            where = lane[index][None, :, None] + local  # [n, kv_heads, per_kv]
            output[span.first_row : span.first_row + span.num_rows] = where.reshape(span.num_rows, -1)

        in_order = len(spans) == 1 and np.array_equal(rank, np.arange(lengths[0]))
        return Group(
            rows=rows,
            num_spans=len(spans),
            query_index=torch.from_numpy(query[owner].reshape(-1)),
            blocks=blocks,
            mask=torch.from_numpy(mask),
            grid=None if in_order else _rank_grid(owner, rank, lengths),
        )

    def _write_slots(self, spans: list[Span]) -> NDArray[np.int64]:
        """Where each row's keys and values go, as rows of head_dim in the flattened cache."""
        slots = []
        for span in spans:
            position = span.position + np.arange(span.num_rows)
            block = np.asarray(span.blocks)[position // self._block_size]
            first = (block * self._kv_heads)[:, None] + np.arange(self._kv_heads)  # [n, kv_heads]
            key = first * self._block_size + (position % self._block_size)[:, None]
            value = key + self._num_blocks * self._kv_heads * self._block_size
            slots.append(np.concatenate((key, value), axis=1))
        return np.concatenate(slots).reshape(-1)


def _tiles(span: Span) -> list[Span]:
    """Cuts a long span into tiles of TILE_ROWS rows."""
    return [
        Span(span.first_row + start, min(TILE_ROWS, span.num_rows - start), span.position + start, span.blocks)
        for start in range(0, span.num_rows, TILE_ROWS)
    ]


def _arrange_blocks(
    spans: list[Span], lengths: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.int64], slice | torch.Tensor]:
    """Owner and rank of each block to read, and how to read them: a slice of the cache where they lie close.

    A slice may hold blocks of others; they get a rank beyond every row's position.
    """
    physical = np.concatenate(
        [np.asarray(span.blocks[:n], dtype=np.int64) for span, n in zip(spans, lengths, strict=True)]
    )
    owner = np.repeat(np.arange(len(spans)), lengths)
    rank = np.concatenate([np.arange(n) for n in lengths])
    low, high = int(physical.min()), int(physical.max()) + 1
    in_place = high - low <= len(physical) * 3 // 2 and len(np.unique(physical)) == len(physical)
    if not in_place:
        return owner, rank, torch.from_numpy(physical)
    all_owner = np.zeros(high - low, dtype=np.int64)
    all_rank = np.full(high - low, 2**40, dtype=np.int64)
    all_owner[physical - low] = owner
    all_rank[physical - low] = rank
    return all_owner, all_rank, slice(low, high)


def _rank_grid(owner: NDArray[np.int64], rank: NDArray[np.int64], lengths: list[int]) -> RankGrid:
    shape = (max(lengths), len(lengths))
    grid = np.zeros(shape, dtype=np.int64)
    exists = np.zeros(shape, dtype=np.float32)
    used = rank < shape[0]
    grid[rank[used], owner[used]] = np.flatnonzero(used)
    exists[rank[used], owner[used]] = 1
    # Where a span has no block of a rank its first stands in, times 0: its maximum stays its own.
    grid = np.where(exists > 0, grid, grid[0])
    return RankGrid(
        owner=torch.from_numpy(owner),
        blocks=torch.from_numpy(grid.reshape(-1)),
        exists=torch.from_numpy(exists)[:, :, None, None],
    )
