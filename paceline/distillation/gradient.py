"""Logits -> their gradient, in place, in two passes over each row: what a training step spends outside of products."""

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, ONE, compiled, exp_of_negative, put, widen

TINY = np.float32(1e-9)
# What the draft must leave for "anything else", to divide by.
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
    """KL(p || q) of one row, and what q is multiplied with outside the top: q - p_rest q / q_rest.

    p, q: [known] of the top's tokens that the head knows. `by_logit` is filled: q - p.
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
    """The same for 1 - sum min(p, q)."""
    loss, below = ONE, np.float32(0)
    for j in range(p.size):
        loss -= min(p[j], q[j])
        below += q[j] if q[j] < p[j] else np.float32(0)
    for j in range(p.size):
        by_logit[j] = q[j] * (below - ONE) if q[j] < p[j] else q[j] * below
    return loss, below


@compiled()
def _differentiate_row(logits: Array, places: Array, probs: Array, by_overlap: bool) -> np.float32:
    """Returns the row's loss."""
    highest = _highest(logits)
    total = _sum_exponentials(logits, highest)
    known = 0
    at, p = np.empty(places.size, np.int64), np.empty(places.size, np.float32)
    q, by_logit = np.empty(places.size, np.float32), np.empty(places.size, np.float32)
    for j in range(places.size):
        if places[j] < logits.size:
            at[known], p[known] = places[j], probs[j]
            q[known] = exp_of_negative(widen(logits[places[j]]) - highest) / total
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
def differentiate(logits: Array, places: Array, probs: Array, by_overlap: bool, losses: Array) -> None:
    """logits: [num_rows, head_size] float32 or bfloat16's bits, replaced by the loss's gradient by them.

    places, probs: [num_rows, top], places from head_size on are not in the head. `losses`: [num_rows], filled.
    """
    for row in prange(logits.shape[0]):
        losses[row] = _differentiate_row(logits[row], places[row], probs[row], by_overlap)
