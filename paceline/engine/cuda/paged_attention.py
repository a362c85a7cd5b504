"""Paged attention on a GPU, for a few query rows of each sequence or a chunk of a prompt.

    keys[layer], values[layer]: [num_blocks, block_size, kv_heads, head_dim]

A tile is some rows of one sequence, with all query heads of one KV head. A program computes one tile over ATTENTION_PART_TOKENS
positions (Dao et al. 2023, "Flash-Decoding"), and a second kernel adds each row's parts in order. Parts begin at fixed
positions and rows are computed separately, so attention is batch invariant.
"""

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.forward_plan import ATTENTION_PART_TOKENS, SMALL_TILE_ROWS, ForwardPlan, ForwardShape
from paceline.errors import ConfigError

# The most memory for the parts' results. A chunk of a prompt after a long context may need several passes.
RESULT_BYTES = 256 << 20
# Positions that a program reads in one pass of its loop, and the most numbers of keys: they must fit into shared memory.
CHUNK_TOKENS, CHUNK_NUMBERS = 128, 128 * 128
# Loads of a program's loop that are under way at once.
NUM_STAGES = 2
# The smallest side of a matrix product in Triton.
_LEAST_ROWS = 16
_LOG2_E = 1.4426950408889634
LOG2_E = tl.constexpr(_LOG2_E)


@dataclass(frozen=True, slots=True)
class Scoring:
    """What becomes of a layer's scores, and which tokens a row sees."""

    scale: float
    # A score x becomes cap * tanh(x / cap); 0: x.
    cap: float = 0.0
    # The number of tokens that a row sees, its own included; 0: all.
    window: int = 0
    # [heads] float32: each head's score without a value, which takes a part of the weight; None: none.
    sinks: torch.Tensor | None = None
    # The first position that rows see.
    first: int = 0
    # Whether the rows of a tile see those behind them in it, too.
    sees_ahead: bool = False


@triton.jit(do_not_specialize=["table_width", "num_parts"])
def _attend_part(
    queries, keys, values, tiles, tables, mixed, peaks, totals, factor, table_width, num_parts,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_TOKENS: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_QUERIES: tl.constexpr, PART: tl.constexpr, CHUNK: tl.constexpr,
    WINDOW: tl.constexpr, CAP: tl.constexpr, FIRST: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first_row = tl.load(tiles + tile * 4)
    num_rows = tl.load(tiles + tile * 4 + 1)
    position = tl.load(tiles + tile * 4 + 2)
    table = tables + tl.load(tiles + tile * 4 + 3).to(tl.int64) * table_width
    last = position + num_rows - 1
    first_seen = tl.maximum(0, position - WINDOW + 1) if WINDOW > 0 else 0
    if (num_rows > 0) & (part * PART <= last) & ((part + 1) * PART > first_seen):
        # The order of a tile's queries: row by row, and in each row the heads of this KV head.
        query = tl.arange(0, TILE_QUERIES)
        row, head = query // GROUP, kv_head * GROUP + query % GROUP
        is_query = row < num_rows
        # The last position that each row sees.
        reach = position + (0 * row + num_rows - 1 if AHEAD else row)
        d = tl.arange(0, HEAD_DIM)
        index = (first_row + row).to(tl.int64) * (GROUP * KV_HEADS) + head
        q = tl.load(queries + index[:, None] * HEAD_DIM + d[None, :], mask=is_query[:, None], other=0.0)
        peak = tl.full([TILE_QUERIES], -float("inf"), tl.float32)
        total = tl.zeros([TILE_QUERIES], tl.float32)
        sums = tl.zeros([TILE_QUERIES, HEAD_DIM], tl.float32)
        begin = tl.maximum(part * PART, first_seen // CHUNK * CHUNK)
        for start in range(begin, tl.minimum((part + 1) * PART, last + 1), CHUNK):
            token = start + tl.arange(0, CHUNK)
            block = tl.load(table + token // BLOCK_TOKENS, mask=token <= last, other=0).to(tl.int64)
            at = ((block * BLOCK_TOKENS + token % BLOCK_TOKENS) * KV_HEADS + kv_head) * HEAD_DIM
            k = tl.load(keys + at[:, None] + d[None, :], mask=(token <= last)[:, None], other=0.0)
            v = tl.load(values + at[:, None] + d[None, :], mask=(token <= last)[:, None], other=0.0)
            # "ieee" keeps all digits of float32.
            scores = tl.dot(q, tl.trans(k), input_precision="ieee") * factor
            if CAP > 0:
                # tanh x = 2 sigmoid(2 x) - 1
                scores = CAP * (2 * tl.sigmoid(2 * scores / CAP) - 1)
            is_seen = token[None, :] <= reach[:, None]
            if WINDOW > 0:
                is_seen &= token[None, :] > (position + row)[:, None] - WINDOW
            if FIRST > 0:
                is_seen &= token[None, :] >= FIRST
            scores = tl.where(is_seen, scores, -float("inf"))
            higher = tl.maximum(peak, tl.max(scores, 1))
            # Before a row attends to its first position, its peak is -inf. Subtract 0 instead, because -inf minus -inf
            # is not a number.
            base = tl.where(higher == -float("inf"), 0.0, higher)
            shrink = tl.exp2(peak - base)
            weights = tl.exp2(scores - base[:, None])
            total = total * shrink + tl.sum(weights, 1)
            sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
            peak = higher
        slot = (tile.to(tl.int64) * TILE_ROWS + row) * (GROUP * KV_HEADS) + head
        result = slot * num_parts + part
        tl.store(peaks + result, peak, mask=is_query)
        tl.store(totals + result, total, mask=is_query)
        tl.store(mixed + result[:, None] * HEAD_DIM + d[None, :], sums, mask=is_query[:, None])


@triton.jit(do_not_specialize=["num_parts"])
def _add_parts(
    mixed, peaks, totals, tiles, sinks, out, num_parts,
    HEAD_DIM: tl.constexpr, NUM_HEADS: tl.constexpr, TILE_ROWS: tl.constexpr, PART: tl.constexpr,
    WINDOW: tl.constexpr, HAS_SINKS: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    tile, head = tl.program_id(0), tl.program_id(1)
    first_row = tl.load(tiles + tile * 4).to(tl.int64)
    num_rows = tl.load(tiles + tile * 4 + 1)
    position = tl.load(tiles + tile * 4 + 2)
    if num_rows > 0:
        row, d = tl.arange(0, TILE_ROWS), tl.arange(0, HEAD_DIM)
        reach = position + (0 * row + num_rows - 1 if AHEAD else row)
        slot = (tile.to(tl.int64) * TILE_ROWS + row) * NUM_HEADS + head
        peak = tl.full([TILE_ROWS], -float("inf"), tl.float32)
        total = tl.zeros([TILE_ROWS], tl.float32)
        sums = tl.zeros([TILE_ROWS, HEAD_DIM], tl.float32)
        if HAS_SINKS:
            peak, total = tl.zeros([TILE_ROWS], tl.float32) + tl.load(sinks + head) * LOG2_E, total + 1
        first_part = tl.maximum(0, position - WINDOW + 1) // PART if WINDOW > 0 else 0
        for part in range(first_part, (position + num_rows - 1) // PART + 1):
            at = slot * num_parts + part
            has = (row < num_rows) & (part * PART <= reach)
            if WINDOW > 0:
                has &= (part + 1) * PART > position + row - WINDOW + 1
            its_peak = tl.load(peaks + at, mask=has, other=-float("inf"))
            higher = tl.maximum(peak, its_peak)
            # Rows outside the tile and padding rows have the peak -inf. Subtract 0 instead.
            base = tl.where(higher == -float("inf"), 0.0, higher)
            shrink, weight = tl.exp2(peak - base), tl.exp2(its_peak - base)
            total = total * shrink + tl.load(totals + at, mask=has, other=0.0) * weight
            its_sums = tl.load(mixed + at[:, None] * HEAD_DIM + d[None, :], mask=has[:, None], other=0.0)
            sums = sums * shrink[:, None] + its_sums * weight[:, None]
            peak = higher
        sums = sums / tl.where(total > 0, total, 1.0)[:, None]
        index = (first_row + row) * NUM_HEADS + head
        tl.store(
            out + index[:, None] * HEAD_DIM + d[None, :], sums.to(out.dtype.element_ty), mask=(row < num_rows)[:, None]
        )


def require_head_dim(head_dim: int) -> None:
    if head_dim & (head_dim - 1):
        raise ConfigError(f"head_dim is {head_dim}; on a GPU it must be a power of two")


def chunk_tokens(head_dim: int) -> int:
    return min(CHUNK_TOKENS, CHUNK_NUMBERS // head_dim)


def warps_of(tile_rows: int) -> int:
    """Returns the warps of a program: with fewer, a larger tile spills registers."""
    return 4 if tile_rows == SMALL_TILE_ROWS else 8


def tiles_at_once(plan: ForwardPlan | ForwardShape, num_heads: int, head_dim: int) -> tuple[int, int]:
    """Returns how many tiles one pass computes so that their results fit into RESULT_BYTES, and the results' bytes."""
    num_tiles = plan.num_tiles
    tile_bytes = 4 * plan.tile_rows * num_heads * plan.num_parts * (head_dim + 2)
    at_once = min(num_tiles, max(1, RESULT_BYTES // tile_bytes))
    return at_once, at_once * tile_bytes


class CudaPagedAttention:
    def __init__(
        self, num_layers: int, num_blocks: int, block_size: int, num_kv_heads: int, head_dim: int,
        dtype: torch.dtype, device: torch.device,
    ) -> None:  # fmt: skip
        shape = (num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        # No sequence holds the last block: padding rows are written to it.
        self.num_blocks, self.block_size = num_blocks, block_size
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def block_bytes(self) -> int:
        return (self.keys.nbytes + self.values.nbytes) // self.num_blocks

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        for cache in (self.keys, self.values):
            cache[:, destinations] = cache[:, sources]

    def attend(self, layer: int, queries: torch.Tensor, plan: ForwardPlan, scoring: Scoring) -> torch.Tensor:
        """queries: [num_rows, heads, head_dim], rotated. Returns the same shape."""
        num_heads, head_dim = queries.shape[1:]
        kv_heads = self.keys.shape[3]
        group = num_heads // kv_heads
        tile_queries = max(_LEAST_ROWS, triton.next_power_of_2(plan.tile_rows * group))
        at_once, _ = tiles_at_once(plan, num_heads, head_dim)
        size = (at_once, plan.tile_rows, num_heads, plan.num_parts)
        mixed = queries.new_empty((*size, head_dim), dtype=torch.float32)
        peaks, totals = queries.new_empty((2, *size), dtype=torch.float32)
        out = torch.empty_like(queries)
        for first in range(0, plan.num_tiles, at_once):
            tiles = plan.tiles[first : first + at_once]
            grid: Any = (len(tiles), kv_heads, plan.num_parts)
            _attend_part[grid](
                queries, self.keys[layer], self.values[layer], tiles, plan.tables, mixed, peaks, totals,
                scoring.scale * _LOG2_E, plan.tables.shape[1], plan.num_parts,
                GROUP=group, KV_HEADS=kv_heads, HEAD_DIM=head_dim, BLOCK_TOKENS=self.block_size,
                TILE_ROWS=plan.tile_rows, TILE_QUERIES=tile_queries, PART=ATTENTION_PART_TOKENS, CHUNK=chunk_tokens(head_dim),
                WINDOW=scoring.window, CAP=scoring.cap * _LOG2_E, FIRST=scoring.first, AHEAD=scoring.sees_ahead,
                num_warps=warps_of(plan.tile_rows), num_stages=NUM_STAGES,
            )  # fmt: skip
            _add_parts[(len(tiles), num_heads)](
                mixed, peaks, totals, tiles, totals if scoring.sinks is None else scoring.sinks, out, plan.num_parts,
                HEAD_DIM=head_dim, NUM_HEADS=num_heads, TILE_ROWS=plan.tile_rows, PART=ATTENTION_PART_TOKENS,
                WINDOW=scoring.window, HAS_SINKS=scoring.sinks is not None, AHEAD=scoring.sees_ahead,
            )  # fmt: skip
        return out
