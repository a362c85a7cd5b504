"""The ways to multiply by a weight: plain, packed for oneDNN (CPU), bfloat16 and int8 by kernels of ours (CPU).

Identity with and without speculation needs every row's result to be independent of the
rows beside it. Each class says how many rows to run, padding included, to keep that;
`row_invariance` checks it at load.
"""

from typing import Protocol

import numpy as np
import torch
from torch.nn import functional

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import bfloat16, int8, matrix_unit
from paceline.engine.cpu.kernels.bfloat16 import multiply_bfloat16, pack_bfloat16
from paceline.engine.cpu.kernels.int8 import multiply_int8, pack_int8
from paceline.engine.cpu.kernels.matrix_unit import DEPTH, UNIT_ROWS, multiply_on_matrix_unit, pack_for_matrix_unit
from paceline.engine.cpu.kernels.products import multiply_int8_weights, pack_int8_weights
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.kernels.tiles import no_residual, pad_features
from paceline.engine.models.quantization import quantise


class CpuLinear(Protocol):
    """y = x W^T + b for x: [rows, in_features], plus `residual`: [rows, out_features] if there is one.

    Rows are arrays as the kernels take them: float32, or bfloat16 as uint16.
    """

    def __call__(self, x: Array, residual: Array | None = None) -> Array: ...

    def padded(self, num_rows: int) -> int:
        """How many rows to run for so many: never so few that the library rounds them another way."""
        ...


class PlainLinear:
    """The library's own linear."""

    _MIN_ROWS = 8

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight  # [out_features, in_features]
        self._bias = bias

    def padded(self, num_rows: int) -> int:
        return max(num_rows, self._MIN_ROWS)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        y = functional.linear(tensor_of(x), self._weight, self._bias)
        return bits_of(y if residual is None else y + tensor_of(residual))


class PackedLinear:
    """Weights reordered once into oneDNN's own layout: about twice as fast for few rows."""

    # One row alone is a matrix-vector product with another order of summation. Two or
    # three rows have the same bits as more, but from memory they are slower than four.
    _MIN_ROWS = 4
    # The row count the layout is chosen for; any count runs.
    _PACKED_FOR_ROWS = 4
    # Leading binary digits a row count keeps. oneDNN makes a kernel for each count it meets, in 2 ms and
    # 0.6 MiB for each shape of weight: every count up to 31, every second up to 63, and so on, so that 512 rows
    # come to 93 counts. A padding row costs what a row costs: at most one in 16.
    _COUNT_DIGITS = 5

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, self._PACKED_FOR_ROWS)
        self._bias = bias

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        multiply = torch.ops.mkldnn._linear_pointwise
        if residual is None:
            return bits_of(multiply(tensor_of(x), self._packed, self._bias, "none", [], ""))
        return bits_of(multiply.binary(tensor_of(x), tensor_of(residual), self._packed, self._bias, "add"))

    def padded(self, num_rows: int) -> int:
        step = 1 << max(0, num_rows.bit_length() - self._COUNT_DIGITS)
        return max(-(-num_rows // step) * step, self._MIN_ROWS)

    @staticmethod
    def is_available() -> bool:
        return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class MatrixUnitLinear:
    """Weights in bfloat16 and a kernel of ours for the processor's matrix unit (AMX)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._out_features = weight.shape[0]
        self._packed = pack_for_matrix_unit(weight)
        self._bias = pad_features(_float_bias(weight, bias))
        self._no_residual = no_residual(self._out_features, np.uint16)

    def padded(self, num_rows: int) -> int:
        return -(-num_rows // UNIT_ROWS) * UNIT_ROWS

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        added = self._no_residual if residual is None else pad_features(residual)
        return _cut(multiply_on_matrix_unit(x, self._packed, self._bias, added), self._out_features)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return weight.dtype is torch.bfloat16 and weight.shape[1] % DEPTH == 0 and matrix_unit.is_available()


class Bfloat16Linear:
    """Weights in bfloat16 and a kernel of ours, where the processor has the instruction for it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._out_features = weight.shape[0]
        self._packed = pack_bfloat16(weight)
        self._bias = pad_features(_float_bias(weight, bias))
        self._no_residual = no_residual(self._out_features, np.uint16)

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        added = self._no_residual if residual is None else pad_features(residual)
        return _cut(multiply_bfloat16(x, self._packed, self._bias, added), self._out_features)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return weight.dtype is torch.bfloat16 and weight.shape[1] % 2 == 0 and bfloat16.DOT.is_available


class Int8Linear:
    """Weights as int8 with one scale per output feature, and rows rounded to 15 bits with one scale each."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        quantised, scale = (each.numpy() for each in quantise(weight))
        self._out_features = weight.shape[0]
        self._packed = pack_int8(quantised)
        self._scale = pad_features(scale)
        self._bias = pad_features(_float_bias(weight, bias))
        self._no_residual = {np.dtype(kind): no_residual(self._out_features, kind) for kind in (np.float32, np.uint16)}

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        added = self._no_residual[x.dtype] if residual is None else pad_features(residual)
        return _cut(multiply_int8(x, self._packed, self._scale, self._bias, added), self._out_features)


class DraftInt8Linear:
    """int8 for few rows, whose time is that of reading weights; for many bfloat16, by the matrix unit.

    A row's bits depend on how many are beside it. Takes the memory of both.
    """

    # What the matrix unit multiplies in the time of one row, int8 does up to half as many.
    _FEW_ROWS = UNIT_ROWS // 2

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._for_few, self._for_many = Int8Linear(weight, bias), MatrixUnitLinear(weight, bias)

    def padded(self, num_rows: int) -> int:
        return num_rows if num_rows <= self._FEW_ROWS else self._for_many.padded(num_rows)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        linear = self._for_few if x.shape[0] <= self._FEW_ROWS else self._for_many
        return linear(x, residual)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return int8.DOT.is_available and MatrixUnitLinear.supports(weight)


class Int8WeightLinear:
    """Weights as int8 with one scale per output feature; rows stay as they are. For any processor."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        quantised, self._scale = (each.numpy() for each in quantise(weight))
        self._packed = pack_int8_weights(quantised)
        self._bias = np.empty(0, np.float32) if bias is None else bias.float().numpy()

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        return multiply_int8_weights(x, self._packed, self._scale, self._bias, residual)


def _float_bias(weight: torch.Tensor, bias: torch.Tensor | None) -> Array:
    return np.zeros(weight.shape[0], np.float32) if bias is None else bias.float().numpy()


def _cut(y: Array, out_features: int) -> Array:
    """Without what fills the last tile."""
    return y if y.shape[1] == out_features else np.ascontiguousarray(y[:, :out_features])


def make_cpu_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, quantization: str, batch_invariant: bool = True
) -> CpuLinear:
    """The fastest way to multiply by `weight` on this processor; with `batch_invariant` each row has those it has alone."""
    if quantization == "int8" and not batch_invariant and DraftInt8Linear.supports(weight):
        return DraftInt8Linear(weight, bias)
    if quantization == "int8":
        return Int8Linear(weight, bias) if int8.DOT.is_available else Int8WeightLinear(weight, bias)
    if MatrixUnitLinear.supports(weight):
        return MatrixUnitLinear(weight, bias)
    if Bfloat16Linear.supports(weight):
        return Bfloat16Linear(weight, bias)
    if PackedLinear.is_available():
        return PackedLinear(weight, bias)
    return PlainLinear(weight, bias)
