"""Row kernels: norm, rotary embedding with the cache write, and gated activation."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(
    x, added, added_weight, weight, out, eps, scale, width, stride,
    HAS_ADDED: tl.constexpr, NORMS_ADDED: tl.constexpr, HAS_WEIGHT: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < width
    at = row * stride + column
    values = tl.load(x + at, mask=inside, other=0.0)
    if HAS_ADDED:
        more = tl.load(added + at, mask=inside, other=0.0).to(tl.float32)
        if NORMS_ADDED:
            factor = 1.0 / tl.sqrt(tl.sum(more * more, 0) / width + eps)
            more = more * factor * tl.load(added_weight + column, mask=inside, other=0.0)
        values = (values.to(tl.float32) + more * scale).to(values.dtype)
        tl.store(x + at, values, mask=inside)
    if HAS_WEIGHT:
        wide = values.to(tl.float32)
        factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
        weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
        tl.store(out + at, (wide * factor * weights).to(values.dtype), mask=inside)


def add_and_norm(
    x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor | None, eps: float,
    added_weight: torch.Tensor | None = None, scale: float = 1.0,
) -> torch.Tensor:  # fmt: skip
    """x += scale * added in place, then returns x / rms(x) * weight (Zhang, Sennrich 2019, equation 4): [num_rows, width].

    x and added: [num_rows, width]. Weights are [width] float32; without `weight` returns x, and `added` is normed if it
    has a weight.
    """
    out = x if weight is None else torch.empty_like(x)
    num_rows, width = x.shape
    _norm[(num_rows,)](
        x, x if added is None else added, x if added_weight is None else added_weight, x if weight is None else weight, out,
        eps, scale, width, width,
        HAS_ADDED=added is not None, NORMS_ADDED=added_weight is not None, HAS_WEIGHT=weight is not None,
        PADDED=triton.next_power_of_2(width),
    )  # fmt: skip
    return out


def norm_columns(x: torch.Tensor, start: int, weight: torch.Tensor, eps: float) -> None:
    """Norms the columns from `start` on in place. x: [num_rows, width]; weight: [num_columns] float32."""
    columns, width = x[:, start:], weight.shape[0]
    _norm[(x.shape[0],)](
        columns, columns, columns, weight, columns, eps, 1.0, width, x.shape[1],
        HAS_ADDED=False, NORMS_ADDED=False, HAS_WEIGHT=True, PADDED=triton.next_power_of_2(width),
    )  # fmt: skip


@triton.jit
def _gate(gate_up, out, width, LINEAR: tl.constexpr, CUBIC: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate * (LINEAR + CUBIC * gate * gate))) * up
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=inside)


def activate(gate_up: torch.Tensor, activation: tuple[float, float]) -> torch.Tensor:
    """activation(gate) * up (Shazeer 2020, equation 6): [num_rows, width]. gate_up: [num_rows, 2 * width], gate first."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((num_rows, width))
    block = min(1024, triton.next_power_of_2(width))
    linear, cubic = activation
    _gate[(num_rows, triton.cdiv(width, block))](gate_up, out, width, LINEAR=linear, CUBIC=cubic, BLOCK=block)
    return out


@dataclass(frozen=True, slots=True)
class Rotation:
    cos: torch.Tensor  # [max_model_len, head_dim] float32
    sin: torch.Tensor  # [max_model_len, head_dim] float32; the first half of head_dim is negated
    # Norm weights of queries and keys: [head_dim] float32, or [heads * head_dim] and [kv_heads * head_dim] if all heads
    # are normed together, or None if the model has none.
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    norm_eps: float
    # [max_model_len] float32: a rotated query's factor; None: 1.
    query_growth: torch.Tensor | None = None


@triton.jit
def _rotate_and_place(
    qkv, positions, slots, cos, sin, query_norm, key_norm, query_growth, queries, keys, values, eps,
    NUM_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_NORMS: tl.constexpr,
    HAS_GROWTH: tl.constexpr,
):  # fmt: skip
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    d = tl.arange(0, HEAD_DIM)
    other = (d + half) % HEAD_DIM
    start = (row * (NUM_HEADS + 2 * KV_HEADS) + head) * HEAD_DIM
    value = tl.load(qkv + start + d)
    slot = tl.load(slots + row).to(tl.int64)
    if head < NUM_HEADS + KV_HEADS:
        x, opposite = value.to(tl.float32), tl.load(qkv + start + other).to(tl.float32)
        if HAS_NORMS:
            is_query = head < NUM_HEADS
            factor = 1.0 / tl.sqrt(tl.sum(x * x, 0) / HEAD_DIM + eps)
            x = x * factor * tl.where(is_query, tl.load(query_norm + d), tl.load(key_norm + d))
            opposite = opposite * factor * tl.where(is_query, tl.load(query_norm + other), tl.load(key_norm + other))
        # Padding rows have position -1.
        position = tl.maximum(tl.load(positions + row), 0).to(tl.int64)
        at = position * HEAD_DIM + d
        rotated = x * tl.load(cos + at) + opposite * tl.load(sin + at)
        if head < NUM_HEADS:
            if HAS_GROWTH:
                rotated = rotated * tl.load(query_growth + position)
            tl.store(queries + (row * NUM_HEADS + head) * HEAD_DIM + d, rotated.to(value.dtype))
        else:
            tl.store(keys + (slot * KV_HEADS + head - NUM_HEADS) * HEAD_DIM + d, rotated.to(value.dtype))
    else:
        tl.store(values + (slot * KV_HEADS + head - NUM_HEADS - KV_HEADS) * HEAD_DIM + d, value)


def rotate_and_place(
    qkv: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, rotation: Rotation,
    keys: torch.Tensor, values: torch.Tensor,
) -> torch.Tensor:  # fmt: skip
    """Rotates queries and keys (Su et al. 2021), and writes keys and values into the cache.

    qkv: [num_rows, heads + 2 * kv_heads, head_dim]; positions: [num_rows]; slots: [num_rows], block * block_size +
    offset; keys and values of one layer: [num_blocks, block_size, kv_heads, head_dim]. Returns the queries: [num_rows,
    heads, head_dim].
    """
    num_rows, all_heads, head_dim = qkv.shape
    kv_heads = keys.shape[2]
    num_heads = all_heads - 2 * kv_heads
    queries = qkv.new_empty((num_rows, num_heads, head_dim))
    query_norm, key_norm, growth = rotation.query_norm, rotation.key_norm, rotation.query_growth
    if query_norm is not None and key_norm is not None and query_norm.shape[0] > head_dim:
        flat = qkv.view(num_rows, -1)
        norm_columns(flat, 0, query_norm, rotation.norm_eps)
        norm_columns(flat, num_heads * head_dim, key_norm, rotation.norm_eps)
        query_norm = None
    norms = (qkv, qkv) if query_norm is None else (query_norm, key_norm)
    _rotate_and_place[(num_rows, all_heads)](
        qkv, positions, slots, rotation.cos, rotation.sin, *norms, qkv if growth is None else growth, queries, keys, values,
        rotation.norm_eps, NUM_HEADS=num_heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, HAS_NORMS=query_norm is not None,
        HAS_GROWTH=growth is not None,
    )  # fmt: skip
    return queries
