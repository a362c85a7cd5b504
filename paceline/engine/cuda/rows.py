"""Row kernels: norm, rotary embedding with the cache write, and gated activation."""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl


@triton.jit
def _norm(x, added, weight, out, eps, width, HAS_ADDED: tl.constexpr, PADDED: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, PADDED)
    inside = column < width
    at = row * width + column
    values = tl.load(x + at, mask=inside, other=0.0)
    if HAS_ADDED:
        values = (values.to(tl.float32) + tl.load(added + at, mask=inside, other=0.0).to(tl.float32)).to(values.dtype)
        tl.store(x + at, values, mask=inside)
    wide = values.to(tl.float32)
    factor = 1.0 / tl.sqrt(tl.sum(wide * wide, 0) / width + eps)
    weights = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + at, (wide * factor * weights).to(values.dtype), mask=inside)


def add_and_norm(x: torch.Tensor, added: torch.Tensor | None, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x += added in place, then returns x / rms(x) * weight (Zhang, Sennrich 2019, equation 4): [num_rows, width].

    x and added: [num_rows, width]; weight: [width] float32.
    """
    out = torch.empty_like(x)
    num_rows, width = x.shape
    has_added = added is not None
    padded = triton.next_power_of_2(width)
    _norm[(num_rows,)](x, added if has_added else x, weight, out, eps, width, HAS_ADDED=has_added, PADDED=padded)
    return out


@triton.jit
def _gate(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    gate = tl.load(gate_up + row * 2 * width + column, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + column, mask=inside, other=0.0).to(tl.float32)
    value = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + column, value.to(out.dtype.element_ty), mask=inside)


def silu_gate(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up (Shazeer 2020, equation 6): [num_rows, width]. gate_up: [num_rows, 2 * width], gate first."""
    num_rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty((num_rows, width))
    block = min(1024, triton.next_power_of_2(width))
    _gate[(num_rows, triton.cdiv(width, block))](gate_up, out, width, BLOCK=block)
    return out


@dataclass(frozen=True, slots=True)
class Rotation:
    cos: torch.Tensor  # [max_model_len, head_dim] float32
    sin: torch.Tensor  # [max_model_len, head_dim] float32; the first half of head_dim is negated
    # Norm weights of queries and keys: [head_dim] float32, or None if the model has none.
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    norm_eps: float


@triton.jit
def _rotate_and_place(
    qkv, positions, slots, cos, sin, query_norm, key_norm, queries, keys, values, eps,
    NUM_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, HAS_NORMS: tl.constexpr,
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
        rotated = (x * tl.load(cos + at) + opposite * tl.load(sin + at)).to(value.dtype)
        if head < NUM_HEADS:
            tl.store(queries + (row * NUM_HEADS + head) * HEAD_DIM + d, rotated)
        else:
            tl.store(keys + (slot * KV_HEADS + head - NUM_HEADS) * HEAD_DIM + d, rotated)
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
    norms = (qkv, qkv) if rotation.query_norm is None else (rotation.query_norm, rotation.key_norm)
    _rotate_and_place[(num_rows, all_heads)](
        qkv, positions, slots, rotation.cos, rotation.sin, *norms, queries, keys, values, rotation.norm_eps,
        NUM_HEADS=num_heads, KV_HEADS=kv_heads, HEAD_DIM=head_dim, HAS_NORMS=rotation.query_norm is not None,
    )  # fmt: skip
    return queries
