"""Linear layers on a CPU. Each class pads the number of rows as its batch invariance needs."""

import platform
from abc import ABC, abstractmethod
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import bfloat16, int8
from paceline.engine.cpu.kernels.bfloat16 import (
    DEPTH,
    UNIT_ROWS,
    Bfloat16Weights,
    MatrixUnitWeights,
    pack_bfloat16,
    pack_for_matrix_unit,
    unpack_rows,
)
from paceline.engine.cpu.kernels.decoder import FEW_ROWS, DraftInt8Weights, Weights, multiply
from paceline.engine.cpu.kernels.int8 import Int8Weights, pack_int8
from paceline.engine.cpu.kernels.memory import Arena, map_region
from paceline.engine.cpu.kernels.processor import has_features
from paceline.engine.cpu.kernels.products import (
    PackedWeights,
    multiply_weights,
    pack_weights,
    products_address,
    unpack_weights,
)
from paceline.engine.cpu.kernels.quantized.dots import dots_address
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME, CHUNK_GROUPS, WORD_FEATURES, Format, pack
from paceline.engine.cpu.kernels.quantized.product import QuantizedWeights
from paceline.engine.cpu.kernels.quantized.unpacking import FOUR_BITS, look_up, round_to_four_bits, unpack_address
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.kernels.tiles import WIDTH, no_residual, pad_features
from paceline.engine.models.gguf.tensors import FileTensor
from paceline.engine.models.quantization import INT8, NO_QUANTIZATION, in_blocks, quantize
from paceline.engine.models.shapes import Weight


class CpuLinear(Protocol):
    """y = x W^T + b + residual. x: [num_rows, in_features]; residual: [num_rows, out_features] or None.

    Arrays are float32, or bfloat16 as uint16.
    """

    # Of its weights (see `models.quantization`).
    formats: tuple[str, ...]

    def __call__(self, x: Array, residual: Array | None = None) -> Array: ...

    def padded(self, num_rows: int) -> int:
        """Returns how many rows to run for `num_rows`: with fewer torch may sum in another order."""
        ...


class DenseLinear(CpuLinear, Protocol):
    """A linear layer of any weights that it supports."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None: ...

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        """Whether this processor can multiply these weights."""
        ...


class PlainLinear:
    formats: tuple[str, ...] = (NO_QUANTIZATION,)
    _MIN_ROWS = 8

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight  # [out_features, in_features]
        self._bias = bias

    def padded(self, num_rows: int) -> int:
        return max(num_rows, self._MIN_ROWS)

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        y = functional.linear(tensor_of(x), self._weight, self._bias)
        return bits_of(y if residual is None else y + tensor_of(residual))

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return True


class PackedLinear:
    """Weights in oneDNN's layout, which is faster for few rows."""

    formats: tuple[str, ...] = (NO_QUANTIZATION,)
    # One row alone is a matrix-vector product with another order of summation. Two or three rows give the same result
    # as more, but they are slower than four when the weights come from memory.
    _MIN_ROWS = 4
    # The row count that the layout is optimized for.
    _PACKED_FOR_ROWS = 4
    # Significant binary digits of a padded row count. For each count and shape of weight oneDNN makes a kernel, which
    # takes time and memory. Counts are every number up to 31, every second up to 63, and so on: 93 counts up to 512
    # rows. At most one row in 16 is padding.
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
    def supports(weight: torch.Tensor) -> bool:
        """Requires AVX-512 or AVX-NE-CONVERT for bfloat16."""
        if not (torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")):
            return False
        if weight.dtype is not torch.bfloat16:
            return True
        # On the matrix unit the library's order of summation depends on the number of rows.
        return torch.ops.mkldnn._is_mkldnn_bf16_supported() and not bfloat16.has_matrix_unit()


class KernelLinear(ABC):
    """A linear layer that can run inside `kernels.decoder`."""

    formats: tuple[str, ...] = (NO_QUANTIZATION,)

    def __init__(self, out_features: int) -> None:
        self._out_features = out_features

    @abstractmethod
    def weights(self, dtype: np.dtype[Any]) -> Weights:
        """The kernel's arrays, for rows of this dtype."""

    @property
    def has_whole_tiles(self) -> bool:
        """Whether the kernel returns no padding features."""
        return self._out_features % WIDTH == 0

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        weights = self.weights(x.dtype)
        y = multiply(x, weights, weights.no_residual if residual is None else pad_features(residual))
        return y if self.has_whole_tiles else np.ascontiguousarray(y[:, : self._out_features])


class MatrixUnitLinear(KernelLinear):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[0])
        bias_row = pad_features(_float_bias(weight, bias))
        self._weights = MatrixUnitWeights(
            pack_for_matrix_unit(weight), bias_row, no_residual(self._out_features, np.uint16)
        )

    def padded(self, num_rows: int) -> int:
        return -(-num_rows // UNIT_ROWS) * UNIT_ROWS

    def weights(self, dtype: np.dtype[Any]) -> MatrixUnitWeights:
        return self._weights

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        return unpack_rows(self._weights.packed, ids)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return weight.dtype is torch.bfloat16 and weight.shape[1] % DEPTH == 0 and bfloat16.has_matrix_unit()


class Bfloat16Linear(KernelLinear):
    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[0])
        bias_row = pad_features(_float_bias(weight, bias))
        self._weights = Bfloat16Weights(pack_bfloat16(weight), bias_row, no_residual(self._out_features, np.uint16))

    def padded(self, num_rows: int) -> int:
        return num_rows

    def weights(self, dtype: np.dtype[Any]) -> Bfloat16Weights:
        return self._weights

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        return unpack_rows(self._weights.packed, ids)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return weight.dtype is torch.bfloat16 and weight.shape[1] % 2 == 0 and bfloat16.DOT.is_available


class Int8Linear(KernelLinear):
    """int8 weights, one scale per output feature; activations rounded to 15 bits, one scale per row."""

    formats: tuple[str, ...] = (INT8,)

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[0])
        quantized, scale = (each.numpy() for each in quantize(weight))
        packed, scales = pack_int8(quantized), pad_features(scale)
        bias_row = pad_features(_float_bias(weight, bias))
        self._weights = {
            np.dtype(kind): Int8Weights(packed, scales, bias_row, no_residual(self._out_features, kind))
            for kind in (np.float32, np.uint16)
        }

    def padded(self, num_rows: int) -> int:
        return num_rows

    def weights(self, dtype: np.dtype[Any]) -> Int8Weights:
        return self._weights[dtype]

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return int8.DOT.is_available


class DraftInt8Linear(KernelLinear):
    """int8 weights for few rows, which are bound by memory, and bfloat16 for many. Not batch invariant."""

    formats: tuple[str, ...] = (INT8,)

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight.shape[0])
        self._for_few, self._for_many = Int8Linear(weight, bias), MatrixUnitLinear(weight, bias)

    def padded(self, num_rows: int) -> int:
        return num_rows if num_rows <= FEW_ROWS else self._for_many.padded(num_rows)

    def weights(self, dtype: np.dtype[Any]) -> DraftInt8Weights:
        for_many = self._for_many.weights(dtype)
        return DraftInt8Weights(self._for_few.weights(dtype), for_many, for_many.no_residual)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return Int8Linear.supports(weight) and MatrixUnitLinear.supports(weight)


class WideningLinear:
    """Weights that the kernel widens to float32. Activations are not rounded. For any processor."""

    formats: tuple[str, ...] = (NO_QUANTIZATION,)

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features], int8 or bfloat16; scale: [out_features] float32."""
        self._in_features = weight.shape[1]
        packed = pack_weights(bits_of(weight))
        bias_row = np.empty(0, np.float32) if bias is None else bias.float().numpy()
        self._weights = PackedWeights(packed, scale.numpy(), bias_row, products_address(packed))

    def padded(self, num_rows: int) -> int:
        return num_rows

    def __call__(self, x: Array, residual: Array | None = None) -> Array:
        return multiply_weights(x, self._weights, residual)


class WideningInt8Linear(WideningLinear):
    formats: tuple[str, ...] = (INT8,)

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(*quantize(weight), bias)

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return True


class WideningBfloat16Linear(WideningLinear):
    """Without AVX512 the library emulates bfloat16, which takes 4 to 10 times as long."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__(weight, torch.ones(weight.shape[0]), bias)

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        """ids: [num_rows] -> [num_rows, in_features] bfloat16."""
        return np.ascontiguousarray(unpack_weights(self._weights.packed, ids)[:, : self._in_features])

    @staticmethod
    def supports(weight: torch.Tensor) -> bool:
        return weight.dtype is torch.bfloat16


# Their `rows` are the weights' own.
BFLOAT16_LINEARS = MatrixUnitLinear | Bfloat16Linear | WideningBfloat16Linear


class QuantizedLinear(KernelLinear):
    """Weights in GGUF's quantized blocks; activations rounded to 8 bits (`kernels.quantized`)."""

    def __init__(self, parts: tuple[FileTensor, ...], bias: torch.Tensor | None, most_bits: int = 8) -> None:
        """Rounds codes of more than `most_bits`, 4 or 8, to Q4_1."""
        in_features = parts[0].shape[1]
        formats, packed = zip(*[_pack(part, in_features, most_bits) for part in parts], strict=True)
        out_features = sum(part.shape[0] for part in parts)
        bias_row = np.zeros(out_features, np.float32) if bias is None else bias.float().numpy()
        self._set(list(formats), list(packed), in_features, bias_row)

    def _set(self, formats: list[Format], packed: list[Array], in_features: int, bias: Array) -> None:
        """`packed`: each part's tiles; bias: [out_features] float32."""
        super().__init__(bias.size)
        self._in_features = in_features
        self._formats = formats
        self.formats = tuple(fmt.name.lower() for fmt in formats)
        # The kernel knows their addresses; this keeps them alive.
        self._packed = packed
        self._parts = np.array([
            (fmt.number, dots_address(fmt), unpack_address(fmt), tiles.ctypes.data, *tiles.shape)
            for fmt, tiles in zip(formats, packed, strict=True)
        ])  # fmt: skip
        bias_row = pad_features(bias)
        self._weights = {
            np.dtype(kind): QuantizedWeights(self._parts, bias_row, no_residual(bias.size, kind))
            for kind in (np.float32, np.uint16)
        }

    def first(self, num_rows: int) -> "QuantizedLinear":
        """A head's first rows, in the same memory."""
        return self._with_tiles(self._packed[0][: -(-num_rows // WIDTH)], num_rows)

    def empty(self) -> "QuantizedLinear":
        """A head of the same shape and format with weights of 0. Its pages take memory once they are written to."""
        tiles = self._packed[0]
        return self._with_tiles(map_region(tiles.nbytes)[: tiles.nbytes].reshape(tiles.shape), self._out_features)

    def copy_rows(self, source: "QuantizedLinear", ids: Array, places: Array) -> None:
        """Copies rows of a head of the same format, bit for bit: those of `ids` to `places`, both [num_rows]."""
        [fmt], [to], [tiles] = self._formats, self._packed, source._packed
        units = -1, self._in_features // fmt.block_features, fmt.unit_bytes
        of_row = _unit_bytes_of_rows(fmt)
        new, old = (divmod(each, WIDTH) for each in (places, ids))
        # [num_rows, units, bytes of a row in a unit]
        copied = tiles.reshape(units)[old[0][:, None], :, of_row[old[1]]]
        to.reshape(units)[new[0][:, None], :, of_row[new[1]]] = copied

    def _with_tiles(self, tiles: Array, num_rows: int) -> "QuantizedLinear":
        made = QuantizedLinear.__new__(QuantizedLinear)
        made._set(self._formats, [tiles], self._in_features, np.zeros(num_rows, np.float32))
        return made

    def padded(self, num_rows: int) -> int:
        return num_rows

    def weights(self, dtype: np.dtype[Any]) -> QuantizedWeights:
        return self._weights[dtype]

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        """ids: [num_rows] -> [num_rows, in_features] of the dtype."""
        out = np.empty((ids.size, self._in_features), dtype)
        number, _, unpacks_at, address, _, tile_bytes = self._parts[0]
        look_up(number, unpacks_at, address, tile_bytes, ids, out)
        return out

    @staticmethod
    def supports(weight: Weight) -> bool:
        """Every part begins at a tile, so all but the last must fill theirs."""
        is_possible = platform.machine() != "x86_64" or has_features("f16c", "fma")
        return is_possible and isinstance(weight, tuple) and all(part.shape[0] % WIDTH == 0 for part in weight[:-1])


def _pack(part: FileTensor, in_features: int, most_bits: int) -> tuple[Format, Array]:
    fmt = BY_NAME[part.format.name]
    if fmt.bits <= most_bits:
        return fmt, pack(part.data, part.row_order, fmt, in_features)
    # Outside the weights' arena, which frees nothing as long as what follows stays.
    packed = pack(part.data, part.row_order, fmt, in_features, Arena())
    return FOUR_BITS, round_to_four_bits(packed, fmt, in_features)


def _unit_bytes_of_rows(fmt: Format) -> Array:
    """The places of a row's bytes in a unit, for each row of a tile: [WIDTH, bytes of a row]."""
    at = np.arange(fmt.unit_bytes)
    # Scales of 16 bits, then scales of 8 bits, then words of codes.
    halves_end = fmt.header_bytes % (2 * CHUNK_GROUPS * WIDTH)
    codes = (at - fmt.header_bytes) // WORD_FEATURES
    row = np.where(at < halves_end, at // 2, np.where(at < fmt.header_bytes, at, codes)) % WIDTH
    return np.argsort(row, kind="stable").reshape(WIDTH, -1)


def _float_bias(weight: torch.Tensor, bias: torch.Tensor | None) -> Array:
    return np.zeros(weight.shape[0], np.float32) if bias is None else bias.float().numpy()


def has_own_kernel(linear: CpuLinear) -> bool:
    """Whether an output feature's bits depend on its own weights alone. A library's may depend on the shape."""
    return isinstance(linear, KernelLinear | WideningLinear)


# By what the weights become, the fastest first. The last one of each runs on any processor.
LINEARS: dict[str, tuple[type[DenseLinear], ...]] = {
    NO_QUANTIZATION: (MatrixUnitLinear, Bfloat16Linear, PackedLinear, WideningBfloat16Linear, PlainLinear),
    INT8: (Int8Linear, WideningInt8Linear),
}


def make_cpu_linear(
    weight: Weight, bias: torch.Tensor | None, quantization: str, batch_invariant: bool = True
) -> CpuLinear:
    """Returns the fastest linear layer for `weight`: [out_features, in_features].

    `quantization`: see EngineConfig. A draft, which may differ from its file, is not batch invariant.
    """
    if quantization == "auto":
        by_role = "int4" if isinstance(weight, tuple) else INT8
        quantization = NO_QUANTIZATION if batch_invariant else by_role
    if isinstance(weight, tuple):
        if QuantizedLinear.supports(weight):
            return QuantizedLinear(weight, bias, most_bits=4 if quantization == "int4" else 8)
        weight = torch.cat([torch.from_numpy(part.dequantized()).bfloat16() for part in weight])
    if quantization == "int4":
        if (blocks := in_blocks(weight, "Q4_1")) is not None:
            return QuantizedLinear((blocks,), bias)
        quantization = NO_QUANTIZATION
    if quantization == INT8 and not batch_invariant and DraftInt8Linear.supports(weight):
        return DraftInt8Linear(weight, bias)
    return next(kind(weight, bias) for kind in LINEARS[quantization] if kind.supports(weight))
