"""Paged attention. One call per layer rotates queries and keys, writes the cache and attends.

Keys are stored by feature and values by token, so that both products read rows of memory:

    keys[place, kv_head]: [head_dim, block_size], values[place, kv_head]: [block_size, head_dim]

A place is an index counted from the layer's first block (see `cache_layout`). A row reads its own key and value from
the cache too, so that it attends to the same numbers as later rows. Blocks are visited in order with an online softmax
(Milakov, Gimelshein 2018, algorithm 3), and each query has its own sums: attention is batch invariant.
"""

from typing import Any, NamedTuple

import numpy as np
from numba import prange, typeof, types
from numba.np.numpy_support import from_dtype

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.cache import Cache, scale_scores, scale_weights, write_token
from paceline.engine.cpu.kernels.products import add_products
from paceline.engine.cpu.kernels.rows import cap_row, norm_row
from paceline.engine.cpu.kernels.scalars import (
    IN_LANES,
    ONE,
    address_of,
    call_at,
    compiled,
    exp_of_negative,
    put,
    widen,
)
from paceline.engine.threads import kernel_workers

# Rows of one sequence that read its blocks together.
TILE_ROWS = 8
# With this many products of a query and a key, the cores share the work.
PRODUCTS_TO_SHARE = 1024
# Phases of the kernel.
WRITE, ATTEND = range(2)
MASKED = np.float32(-np.inf)
ZERO = np.float32(0)
NO_SINKS = np.empty(0, np.float32)


class AttentionPlan(NamedTuple):
    """A batch's arrays for attention, shared by all layers."""

    positions: Array  # [num_rows without padding]
    slots: Array  # [num_rows without padding]: the block's place * block_size + offset in the block
    # [num_tiles, 5]: first row, number of rows, position, start of the sequence's blocks in `places`, and the position before
    # which its rows see all, those behind them too; 0: none.
    tiles: Array
    places: Array  # [sum of table sizes]: the places of the sequences' blocks, one after the other
    queries: Array  # [kv_heads, num_rows * heads / kv_heads, head_dim] float32: the kernel's working memory
    # Whether the work is large enough to share it among all cores.
    is_shared: bool


class HeadRotation(NamedTuple):
    cos: Array  # [max_model_len, head_dim] float32
    sin: Array  # [max_model_len, head_dim] float32; the first half of head_dim is negated
    # Norm weights of queries and keys: [head_dim] float32, or [heads * head_dim] and [kv_heads * head_dim] if all heads
    # are normed together, or [0] if the model has none.
    query_norm: Array
    key_norm: Array
    query_scale: Array  # [max_model_len] float32: a rotated query's factor


class Scoring(NamedTuple):
    """Which tokens a row sees, and what becomes of its scores."""

    # The number of tokens that a row sees, its own included; 0: all.
    window: int
    # A score x becomes cap * tanh(x / cap); 0: x.
    cap: float
    # [heads] float32: each head's score without a value, which takes a part of the weight; [0]: none.
    sinks: Array = NO_SINKS
    # The first position that a row sees, unless its own comes before it.
    first: int = 0


@compiled()
def _rotate(x: Array, norm: Array, eps: np.float32, cos: Array, sin: Array, out: Array) -> None:
    """Rotates x: [head_dim] into out: [head_dim], after a norm if `norm` is not empty."""
    if norm.size:
        norm_row(x, norm, eps, out)
    else:
        for d in range(x.size):
            out[d] = widen(x[d])
    half = x.size // 2
    for d in range(half):
        low, high = out[d], out[half + d]
        out[d] = low * cos[d] + high * sin[d]
        out[half + d] = high * cos[half + d] + low * sin[half + d]


@compiled()
def _write_row(
    row: int,
    qkv: Array,
    position: int,
    slot: int,
    rotation: HeadRotation,
    eps: np.float32,
    cache: Cache,
    queries: Array,
) -> None:
    """Rotates a row's queries into `queries`, and writes its keys and values into the cache."""
    kv_heads, head_dim, block_size = cache.keys.shape[1:]
    per_kv = qkv.shape[1] // kv_heads - 2
    num_heads = per_kv * kv_heads
    cos, sin, scale = rotation.cos[position], rotation.sin[position], rotation.query_scale[position]
    place, offset = slot // block_size, slot % block_size
    key = np.empty(head_dim, np.float32)
    query_norm, key_norm = rotation.query_norm, rotation.key_norm
    if query_norm.size > head_dim:
        every_query = qkv[row, :num_heads].reshape(num_heads * head_dim)
        every_key = qkv[row, num_heads : num_heads + kv_heads].reshape(kv_heads * head_dim)
        norm_row(every_query, query_norm, eps, every_query)
        norm_row(every_key, key_norm, eps, every_key)
        query_norm, key_norm = query_norm[:0], key_norm[:0]
    for head in range(num_heads):
        out = queries[head // per_kv, row * per_kv + head % per_kv]
        _rotate(qkv[row, head], query_norm, eps, cos, sin, out)
        for d in range(head_dim):
            out[d] *= scale
    for head in range(kv_heads):
        _rotate(qkv[row, num_heads + head], key_norm, eps, cos, sin, key)
        write_token(cache, place, head, offset, key, qkv[row, num_heads + kv_heads + head])


@compiled(IN_LANES | {"nnan"})
def _peak(scores: Array) -> np.float32:
    peak = scores[0]
    for t in range(scores.size):
        peak = scores[t] if scores[t] > peak else peak
    return peak


@compiled(IN_LANES)
def _sum(weights: Array) -> np.float32:
    total = ZERO
    for t in range(weights.size):
        total += weights[t]
    return total


@compiled()
def _weigh(
    scores: Array,
    first_seen: int,
    end_seen: int,
    cap: np.float32,
    index: int,
    peaks: Array,
    totals: Array,
    mixed: Array,
) -> None:
    """Turns a query's scores: [block_size] into softmax weights, relative to its largest score so far.

    A new largest score scales down the query's total and mixed values: [head_dim]. Tokens before `first_seen` and from
    `end_seen` on get 0.
    """
    seen = scores[first_seen:end_seen]
    if cap > ZERO:
        cap_row(seen, cap)
    peak = _peak(seen)
    if peak > peaks[index]:
        shrink = exp_of_negative(peaks[index] - peak)
        peaks[index] = peak
        totals[index] *= shrink
        for d in range(mixed.size):
            mixed[d] *= shrink
    peak = peaks[index]
    for t in range(seen.size):
        seen[t] = exp_of_negative(seen[t] - peak)
    totals[index] += _sum(seen)
    scores[:first_seen] = ZERO
    scores[end_seen:] = ZERO


@compiled()
def _attend(
    head: int, first_row: int, num_rows: int, position: int, end: int, places: Array, scoring: Scoring, cache: Cache,
    queries: Array, out: Array,
) -> None:  # fmt: skip
    """Attends with one KV head's queries of `num_rows` rows of a sequence, the first at `position`. `end`: see the tiles."""
    kv_heads, head_dim, block_size = cache.keys.shape[1:]
    per_kv = out.shape[1] // head_dim // kv_heads
    count = num_rows * per_kv
    mine = queries[head, first_row * per_kv : first_row * per_kv + count]
    scores = np.empty((count, block_size), np.float32)
    mixed = np.zeros((count, head_dim), np.float32)
    peaks = np.full(count, MASKED, np.float32)
    totals = np.zeros(count, np.float32)
    if scoring.sinks.size:
        for index in range(count):
            peaks[index], totals[index] = scoring.sinks[head * per_kv + index % per_kv], ONE
    cap = np.float32(scoring.cap)
    num_seen = max(position + num_rows, end)
    window = scoring.window if scoring.window > 0 else num_seen
    num_blocks = (num_seen - 1) // block_size + 1
    for block_index in range(max(0, position - window + 1) // block_size, num_blocks):
        place = places[block_index]
        following = places[min(block_index + 1, num_blocks - 1)]
        # Rows at positions before the block do not attend to it, nor do rows whose window begins after it.
        start = block_index * block_size
        low = 0 if start < end else max(0, start - position) * per_kv
        high = min(count, (start + block_size - 1 + window - position) * per_kv)
        scores[low:high] = ZERO
        add_products(mine[low:high], cache.keys[place, head], cache.keys[following, head], scores[low:high])
        for index in range(low, high):
            # The row's place in the block, or before its start, or after its end.
            own = position + index // per_kv - start
            scale_scores(cache, place, head, scores[index])
            _weigh(
                scores[index],
                max(0, min(own, max(0, own - window + 1, scoring.first - start))),
                min(block_size, max(own + 1, end - start)),
                cap,
                index,
                peaks,
                totals,
                mixed[index],
            )
            scale_weights(cache, place, head, scores[index])
        add_products(scores[low:high], cache.values[place, head], cache.values[following, head], mixed[low:high])
    for index in range(count):
        factor = ONE / totals[index]
        row, start = first_row + index // per_kv, (head * per_kv + index % per_kv) * head_dim
        for d in range(head_dim):
            put(out[row], start + d, mixed[index, d] * factor)


@compiled()
def _run_part(
    phase: int, worker: int, num_workers: int, qkv: Array, positions: Array, slots: Array, tiles: Array, places: Array,
    rotation: HeadRotation, scoring: Scoring, eps: np.float32, cache: Cache, queries: Array, out: Array,
) -> None:  # fmt: skip
    """Runs a worker's share of a phase: WRITE takes rows, ATTEND takes tiles."""
    if phase == WRITE:
        for row in range(worker, slots.size, num_workers):
            _write_row(row, qkv, positions[row], slots[row], rotation, eps, cache, queries)
        return
    kv_heads = cache.keys.shape[1]
    for item in range(worker, tiles.shape[0] * kv_heads, num_workers):
        first_row, num_rows, position, start, end = tiles[item // kv_heads]
        _attend(item % kv_heads, first_row, num_rows, position, end, places[start:], scoring, cache, queries, out)


@compiled(parallel=True)
def _run_parts(
    part_at: int, phase: int, num_workers: int, qkv: Array, positions: Array, slots: Array, tiles: Array, places: Array,
    rotation: HeadRotation, scoring: Scoring, eps: np.float32, cache: Cache, queries: Array, out: Array,
) -> None:  # fmt: skip
    for index in prange(num_workers):
        worker = np.int64(index)
        part = (
            phase, worker, num_workers, qkv, positions, slots, tiles, places, rotation, scoring, eps, cache, queries, out
        )  # fmt: skip
        call_at(_run_part, part_at, part)


@compiled()
def attend_by(
    part_at: int, qkv: Array, plan: AttentionPlan, rotation: HeadRotation, scoring: Scoring, eps: float, cache: Cache
) -> Array:
    """Writes keys and values into a layer's cache, then computes attention.

    part_at: see `part_address`.
    qkv: [num_rows, (heads + 2 * kv_heads) * head_dim].

    Returns [num_rows, heads * head_dim]; padding rows are 0.
    """
    num_rows = qkv.shape[0]
    kv_heads, head_dim = cache.keys.shape[1:3]
    heads = qkv.reshape((num_rows, qkv.shape[1] // head_dim, head_dim))
    out = np.zeros((num_rows, qkv.shape[1] - 2 * kv_heads * head_dim), qkv.dtype)
    num_workers = kernel_workers() if plan.is_shared else 1
    for phase in range(WRITE, ATTEND + 1):
        if num_workers > 1:
            _run_parts(
                part_at, phase, num_workers, heads, plan.positions, plan.slots, plan.tiles, plan.places, rotation, scoring,
                np.float32(eps), cache, plan.queries, out,
            )  # fmt: skip
        else:
            part = (
                phase, np.int64(0), num_workers, heads, plan.positions, plan.slots, plan.tiles, plan.places, rotation,
                scoring, np.float32(eps), cache, plan.queries, out,
            )  # fmt: skip
            call_at(_run_part, part_at, part)
    return out


def part_address(dtype: np.dtype[Any], cache: Cache) -> int:
    """Compiles the kernel for this dtype and kind of cache, and returns its address."""
    rows, floats, counts = from_dtype(dtype), types.float32, types.int64
    table, vector = floats[:, ::1], floats[::1]
    rotation = types.NamedTuple((table, table, vector, vector, vector), HeadRotation)
    return address_of(
        _run_part, counts, counts, counts, rows[:, :, ::1], counts[::1], counts[::1], counts[:, ::1], counts[::1],
        rotation, typeof(Scoring(0, 0.0)), floats, typeof(cache), floats[:, :, ::1], rows[:, ::1],
    )  # fmt: skip
