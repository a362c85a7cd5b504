"""Row kernels: root-mean-square norm and gated activation."""

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, ONE, compiled, exp_of_negative, put, widen
from paceline.engine.threads import kernel_workers

# With this many rows or more the cores share the work.
ROWS_TO_SHARE = 16


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


@compiled()
def _gate_row(gate_up: Array, out: Array) -> None:
    width = out.size
    for i in range(width):
        gate = widen(gate_up[i])
        small = exp_of_negative(-abs(gate))
        # 1 / (1 + e^-x), written so that the exponent is never positive and can't overflow.
        sigmoid = (ONE if gate >= 0 else small) / (ONE + small)
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
def _gate_rows(gate_up: Array, out: Array) -> None:
    for row in range(out.shape[0]):
        _gate_row(gate_up[row], out[row])


@compiled(parallel=True)
def _gate_rows_shared(gate_up: Array, out: Array) -> None:
    for row in prange(out.shape[0]):
        _gate_row(gate_up[row], out[row])


@compiled()
def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Computes x / rms(x) * weight (Zhang, Sennrich 2019, equation 4): [num_rows, width]; weight: [width] float32."""
    out = np.empty_like(x)
    if _is_shared(x.shape[0]):
        _norm_rows_shared(x, weight, np.float32(eps), out)
    else:
        _norm_rows(x, weight, np.float32(eps), out)
    return out


@compiled()
def silu_gate(gate_up: Array) -> Array:
    """Computes silu(gate) * up (Shazeer 2020, equation 6): [num_rows, width]. gate_up: [num_rows, 2 * width]."""
    out = np.empty((gate_up.shape[0], gate_up.shape[1] // 2), gate_up.dtype)
    if _is_shared(out.shape[0]):
        _gate_rows_shared(gate_up, out)
    else:
        _gate_rows(gate_up, out)
    return out
