"""Row kernels: root-mean-square norm, residual, gated activation and soft cap."""

from typing import NamedTuple

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, ONE, compiled, exp_of_negative, put, widen
from paceline.engine.threads import kernel_workers

# With this many rows or more the cores share the work.
ROWS_TO_SHARE = 16


class Activation(NamedTuple):
    """x * sigmoid(linear * x + cubic * x^3)."""

    linear: float
    cubic: float


@compiled()
def _is_shared(num_rows: int) -> bool:
    return num_rows >= ROWS_TO_SHARE and kernel_workers() > 1


@compiled(IN_LANES)
def norm_row(x: Array, weight: Array, eps: np.float32, out: Array) -> None:
    """Writes the norm of x: [width] to out: [width]; weight: [width] float32."""
    total = np.float32(0)
    for i in range(x.size):
        value = widen(x[i])
        total += value * value
    factor = ONE / np.sqrt(total / np.float32(x.size) + eps)
    for i in range(x.size):
        put(out, i, widen(x[i]) * factor * weight[i])


@compiled(IN_LANES)
def _add_row(x: Array, added: Array, weight: Array, eps: np.float32, scale: np.float32, out: Array) -> None:
    if weight.size:
        total = np.float32(0)
        for i in range(added.size):
            value = widen(added[i])
            total += value * value
        factor = scale / np.sqrt(total / np.float32(added.size) + eps)
        for i in range(x.size):
            put(out, i, widen(x[i]) + widen(added[i]) * factor * weight[i])
    else:
        for i in range(x.size):
            put(out, i, widen(x[i]) + widen(added[i]) * scale)


@compiled()
def cap_row(x: Array, cap: np.float32) -> None:
    """Replaces x: [width] float32 by cap * tanh(x / cap)."""
    for i in range(x.size):
        # tanh |y| = (1 - e^-2|y|) / (1 + e^-2|y|)
        small = exp_of_negative(abs(x[i]) * (np.float32(-2) / cap))
        bent = cap * (ONE - small) / (ONE + small)
        x[i] = bent if x[i] >= 0 else -bent


@compiled()
def _gate_row(gate_up: Array, activation: Activation, out: Array) -> None:
    width = out.size
    linear, cubic = np.float32(activation.linear), np.float32(activation.cubic)
    for i in range(width):
        gate = widen(gate_up[i])
        bent = gate * (linear + cubic * gate * gate)
        small = exp_of_negative(-abs(bent))
        # 1 / (1 + e^-x), written so that the exponent is never positive and can't overflow.
        sigmoid = (ONE if bent >= 0 else small) / (ONE + small)
        put(out, i, gate * sigmoid * widen(gate_up[width + i]))


@compiled()
def _norm_rows(x: Array, weight: Array, eps: np.float32, out: Array) -> None:
    for row in range(x.shape[0]):
        norm_row(x[row], weight, eps, out[row])


@compiled(parallel=True)
def _norm_rows_shared(x: Array, weight: Array, eps: np.float32, out: Array) -> None:
    for row in prange(x.shape[0]):
        norm_row(x[row], weight, eps, out[row])


@compiled()
def _add_rows(x: Array, added: Array, weight: Array, eps: np.float32, scale: np.float32, out: Array) -> None:
    for row in range(x.shape[0]):
        _add_row(x[row], added[row], weight, eps, scale, out[row])


@compiled(parallel=True)
def _add_rows_shared(x: Array, added: Array, weight: Array, eps: np.float32, scale: np.float32, out: Array) -> None:
    for row in prange(x.shape[0]):
        _add_row(x[row], added[row], weight, eps, scale, out[row])


@compiled()
def _gate_rows(gate_up: Array, activation: Activation, out: Array) -> None:
    for row in range(out.shape[0]):
        _gate_row(gate_up[row], activation, out[row])


@compiled(parallel=True)
def _gate_rows_shared(gate_up: Array, activation: Activation, out: Array) -> None:
    for row in prange(out.shape[0]):
        _gate_row(gate_up[row], activation, out[row])


@compiled()
def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Computes x / rms(x) * weight (Zhang, Sennrich 2019, equation 4): [num_rows, width]; weight: [width] float32.

    Returns x if weight is [0].
    """
    if weight.size == 0:
        return x
    out = np.empty_like(x)
    if _is_shared(x.shape[0]):
        _norm_rows_shared(x, weight, np.float32(eps), out)
    else:
        _norm_rows(x, weight, np.float32(eps), out)
    return out


@compiled()
def add_scaled(x: Array, added: Array, weight: Array, eps: float, scale: float) -> Array:
    """Computes x + scale * (added, normed unless weight is [0]): [num_rows, width]; weight: [width] float32 or [0]."""
    out = np.empty_like(x)
    if _is_shared(x.shape[0]):
        _add_rows_shared(x, added, weight, np.float32(eps), np.float32(scale), out)
    else:
        _add_rows(x, added, weight, np.float32(eps), np.float32(scale), out)
    return out


@compiled(parallel=True)
def cap_rows(x: Array, cap: float) -> None:
    """Replaces x: [num_rows, width] float32 by cap * tanh(x / cap)."""
    for row in prange(x.shape[0]):
        cap_row(x[row], np.float32(cap))


@compiled()
def activate(gate_up: Array, activation: Activation) -> Array:
    """Computes activation(gate) * up (Shazeer 2020, equation 6): [num_rows, width]. gate_up: [num_rows, 2 * width]."""
    out = np.empty((gate_up.shape[0], gate_up.shape[1] // 2), gate_up.dtype)
    if _is_shared(out.shape[0]):
        _gate_rows_shared(gate_up, activation, out)
    else:
        _gate_rows(gate_up, activation, out)
    return out
