"""The gradient of both losses in the logits, as a CPU kernel of two passes over each row and in torch."""

import numpy as np
import torch
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, ONE, compiled, exp_of_negative, put, widen

TINY = np.float32(1e-9)
# Minimum of q_rest, the mass of q outside the top, by which the loss divides.
LEAST_REST = np.float32(1e-6)


@compiled(IN_LANES)
def _highest(logits: Array) -> np.float32:
    highest = widen(logits[0])
    for i in range(logits.size):
        highest = max(highest, widen(logits[i]))
    return highest


@compiled(IN_LANES)
def _sum_exponentials(logits: Array, highest: np.float32) -> np.float32:
    total = np.float32(0)
    for i in range(logits.size):
        total += exp_of_negative(widen(logits[i]) - highest)
    return total


@compiled()
def _kl(p: Array, q: Array, by_logit: Array) -> tuple[np.float32, np.float32]:
    """Returns KL(p || q) of a row and 1 - p_rest / q_rest, by which q is multiplied outside the top.

    p, q: [num_known], tokens of the top that the head has. Writes their gradient, q - p, to `by_logit`.
    """
    loss, p_rest, q_rest = np.float32(0), ONE, ONE
    for j in range(p.size):
        by_logit[j] = q[j] - p[j]
        loss += p[j] * np.log(max(p[j], TINY) / max(q[j], TINY))
        p_rest -= p[j]
        q_rest -= q[j]
    p_rest, q_rest = max(p_rest, np.float32(0)), max(q_rest, LEAST_REST)
    return loss + p_rest * np.log(max(p_rest, TINY) / q_rest), ONE - p_rest / q_rest


@compiled()
def _overlap(p: Array, q: Array, by_logit: Array) -> tuple[np.float32, np.float32]:
    """Does the same for 1 - sum min(p, q)."""
    loss, below = ONE, np.float32(0)
    for j in range(p.size):
        loss -= min(p[j], q[j])
        below += q[j] if q[j] < p[j] else np.float32(0)
    for j in range(p.size):
        by_logit[j] = q[j] * (below - ONE) if q[j] < p[j] else q[j] * below
    return loss, below


@compiled()
def _differentiate_row(logits: Array, indices: Array, probs: Array, by_overlap: bool) -> np.float32:
    """Replaces logits: [head_size] by the gradient. Returns the loss."""
    highest = _highest(logits)
    total = _sum_exponentials(logits, highest)
    known = 0
    at, p = np.empty(indices.size, np.int64), np.empty(indices.size, np.float32)
    q, by_logit = np.empty(indices.size, np.float32), np.empty(indices.size, np.float32)
    for j in range(indices.size):
        if indices[j] < logits.size:
            at[known], p[known] = indices[j], probs[j]
            q[known] = exp_of_negative(widen(logits[indices[j]]) - highest) / total
            known += 1
    if by_overlap:
        loss, factor = _overlap(p[:known], q[:known], by_logit)
    else:
        loss, factor = _kl(p[:known], q[:known], by_logit)
    factor /= total
    for i in range(logits.size):
        put(logits, i, exp_of_negative(widen(logits[i]) - highest) * factor)
    for j in range(known):
        put(logits, at[j], by_logit[j])
    return loss


@compiled(parallel=True)
def differentiate(logits: Array, indices: Array, probs: Array, by_overlap: bool, losses: Array) -> None:
    """Replaces logits: [num_rows, head_size] by the gradient, and writes losses: [num_rows] float32.

    logits: float32, or bfloat16 as uint16; indices: [num_rows, top], not in the head if >= head_size;
    probs: [num_rows, top] float32.
    """
    for row in prange(logits.shape[0]):
        losses[row] = _differentiate_row(logits[row], indices[row], probs[row], by_overlap)


def differentiate_in_torch(
    logits: torch.Tensor, indices: torch.Tensor, probs: torch.Tensor, by_overlap: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns losses: [num_rows] and gradient: [num_rows, head_size] for the arguments of `differentiate`."""
    q = logits.float().softmax(dim=-1)
    inside = indices < q.shape[-1]
    indices = indices.clamp(max=q.shape[-1] - 1)
    p, q_top = probs * inside, q.gather(1, indices) * inside
    if by_overlap:
        below = (q_top < p) * q_top
        factor = below.sum(dim=-1, keepdim=True)
        losses = 1 - torch.minimum(q_top, p).sum(dim=-1)
        added = -below
    else:
        p_rest = (1 - p.sum(dim=-1, keepdim=True)).clamp_min(0)
        q_rest = (1 - q_top.sum(dim=-1, keepdim=True)).clamp_min(float(LEAST_REST))
        factor = 1 - p_rest / q_rest
        losses = (p * (p.clamp_min(float(TINY)) / q_top.clamp_min(float(TINY))).log()).sum(dim=-1)
        losses += (p_rest * (p_rest.clamp_min(float(TINY)) / q_rest).log()).squeeze(1)
        added = q_top * (p_rest / q_rest) - p
    gradient = (q * factor).scatter_add_(1, indices, added * inside)
    return losses, gradient.to(logits.dtype)
