"""All decoder layers in one call: calls from Python would take an eighth of a one-row forward pass.

Layers have arrays of the same shapes: the kernel takes the first layer's, and a table of all addresses and numbers.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import typeof, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.attention import AttentionPlan, HeadRotation, Scoring, attend_by
from paceline.engine.cpu.kernels.bfloat16 import (
    UNIT_ROWS,
    Bfloat16Weights,
    MatrixUnitWeights,
    multiply_bfloat16,
    multiply_on_matrix_unit,
)
from paceline.engine.cpu.kernels.cache import Cache
from paceline.engine.cpu.kernels.int8 import Int8Weights, multiply_int8
from paceline.engine.cpu.kernels.quantized.product import QuantizedWeights, multiply_quantized
from paceline.engine.cpu.kernels.rows import Activation, activate, add_scaled, rms_norm
from paceline.engine.cpu.kernels.scalars import address_of, call_at, compiled

# The matrix unit multiplies UNIT_ROWS rows in the time of one. int8 is faster for up to half as many.
FEW_ROWS = UNIT_ROWS // 2


class DraftInt8Weights(NamedTuple):
    """A draft's weights twice: int8 for few rows, bfloat16 on the matrix unit for many."""

    for_few: Int8Weights
    for_many: MatrixUnitWeights
    no_residual: Array
    kernel_at: int = 0


Weights = Bfloat16Weights | Int8Weights | MatrixUnitWeights | DraftInt8Weights | QuantizedWeights


class LayerArrays(NamedTuple):
    """A decoder layer's weights and its part of the cache. Norms are [hidden_size] float32, or [0] if there is none."""

    attention_norm: Array
    qkv: Weights
    rotation: HeadRotation
    scoring: Scoring
    cache: Cache
    output: Weights
    output_norm: Array
    mlp_norm: Array
    gate_up: Weights
    activation: Activation
    down: Weights
    down_norm: Array
    # Factor of what the layer adds to a row.
    residual_scale: float
    # `attention.part_address`.
    part_at: int


def table_of(layers: list[LayerArrays]) -> Array:
    """Returns the addresses of the layers' arrays and the bits of their numbers, in order: [num_layers, num_words] int64."""
    return np.array([_words(layer) for layer in layers], np.int64)


def kinds_of(arrays: Any) -> Any:
    """Returns the types of the arrays, which must be equal for layers in one call."""
    if isinstance(arrays, np.ndarray):
        return arrays.dtype, arrays.ndim
    if isinstance(arrays, int | float):
        return type(arrays)
    return type(arrays), *(kinds_of(each) for each in arrays)


def _words(arrays: Any) -> list[int]:
    if isinstance(arrays, np.ndarray):
        return [arrays.ctypes.data]
    if isinstance(arrays, int):
        return [arrays]
    if isinstance(arrays, float):
        return [int(np.float64(arrays).view(np.int64))]
    return [word for each in arrays for word in _words(each)]


def multiply(x: Array, weights: Weights, residual: Array) -> Array:
    """Computes x weights^T + bias + residual with the kernel for these weights."""
    if isinstance(weights, DraftInt8Weights):
        return multiply(x, weights.for_few if x.shape[0] <= FEW_ROWS else weights.for_many, residual)
    return _KERNELS[type(weights)](x, weights, residual)


_KERNELS: dict[type, Callable[..., Array]] = {
    Bfloat16Weights: multiply_bfloat16,
    Int8Weights: multiply_int8,
    MatrixUnitWeights: multiply_on_matrix_unit,
    QuantizedWeights: multiply_quantized,
}


def with_kernel(weights: Any) -> Any:
    """Compiles the kernel for these weights and stores its address with them."""
    if isinstance(weights, DraftInt8Weights):
        return weights._replace(for_few=with_kernel(weights.for_few), for_many=with_kernel(weights.for_many))
    rows = typeof(weights.no_residual)
    return weights._replace(kernel_at=address_of(_KERNELS[type(weights)], rows, typeof(weights), rows))


def _multiply_by_one_of_two(x: Any, weights: Any, residual: Any) -> Any:
    if x.shape[0] <= FEW_ROWS:
        return call_at(multiply_int8, weights.for_few.kernel_at, (x, weights.for_few, residual))
    return call_at(multiply_on_matrix_unit, weights.for_many.kernel_at, (x, weights.for_many, residual))


@overload(multiply)
def _multiply(x: Any, weights: Any, residual: Any) -> Callable[..., Any]:
    if weights.instance_class is DraftInt8Weights:
        return _multiply_by_one_of_two
    kernel = _KERNELS[weights.instance_class]

    def multiply_by_kernel(x: Any, weights: Any, residual: Any) -> Any:
        return call_at(kernel, weights.kernel_at, (x, weights, residual))

    return multiply_by_kernel


def _type_at(typing_context: Any, arrays: Any, addresses: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = context.make_array(addresses)(context, builder, args[1]).data
        return _Mover(context, builder, start).move(arrays, args[0])

    return arrays(arrays, addresses), generate


class _Mover:
    """Writes the code that gives arrays other addresses, and numbers other values. The new arrays own nothing."""

    def __init__(self, context: Any, builder: Any, start: Any) -> None:
        self._context, self._builder, self._start = context, builder, start
        self._num_done = 0

    def move(self, kind: Any, value: Any) -> Any:
        context, builder = self._context, self._builder
        if isinstance(kind, types.Array):
            array = context.make_array(kind)(context, builder, value)
            array.data = builder.inttoptr(self._next_word(), array.data.type)
            array.meminfo = cgutils.get_null_value(array.meminfo.type)
            array.parent = cgutils.get_null_value(array.parent.type)
            return array._getvalue()
        if isinstance(kind, types.Number):
            return builder.bitcast(self._next_word(), value.type)
        moved = [self.move(part, builder.extract_value(value, index)) for index, part in enumerate(kind)]
        return context.make_tuple(builder, kind, moved)

    def _next_word(self) -> Any:
        word = self._builder.load(self._builder.gep(self._start, [ir.IntType(64)(self._num_done)]))
        self._num_done += 1
        return word


_at: Callable[..., LayerArrays] = intrinsic(_type_at)


@compiled()
def _add_product(x: Array, row: Array, weights: Any, norm: Array, eps: float, scale: float) -> Array:
    """Computes x + scale * norm(row weights^T)."""
    if norm.size == 0 and scale == 1:
        return multiply(row, weights, x)
    return add_scaled(x, multiply(row, weights, weights.no_residual), norm, eps, scale)


@compiled()
def run_layers(x: Array, first: LayerArrays, table: Array, plan: AttentionPlan, eps: float) -> Array:
    """Runs the table's layers on x: [num_rows, hidden_size]. `first` provides the shapes."""
    for index in range(table.shape[0]):
        layer = _at(first, table[index])
        # [num_rows, (heads + 2 * kv_heads) * head_dim]
        qkv = multiply(rms_norm(x, layer.attention_norm, eps), layer.qkv, layer.qkv.no_residual)
        mixed = attend_by(layer.part_at, qkv, plan, layer.rotation, layer.scoring, eps, layer.cache)
        x = _add_product(x, mixed, layer.output, layer.output_norm, eps, layer.residual_scale)
        # [num_rows, 2 * intermediate_size]
        gate_up = multiply(rms_norm(x, layer.mlp_norm, eps), layer.gate_up, layer.gate_up.no_residual)
        bent = activate(gate_up, layer.activation)
        x = _add_product(x, bent, layer.down, layer.down_norm, eps, layer.residual_scale)
    return x
