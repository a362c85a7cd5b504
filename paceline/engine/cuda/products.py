"""The ways to multiply by a weight on a GPU: the library's, and tiles of ours, of bfloat16 or int8 weights.

Reading weights is what a product of a few rows costs. Tiles of int8 weights read half as much. Tiles of one size, each
added up in one order whatever the number of rows, give a row the same bits in any company; the library chooses
another kernel for another number of rows.
"""

from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch.nn import functional

# Of a tile: rows, output features and input features at a time.
TILE_ROWS, TILE_FEATURES, TILE_DEPTH = 16, 32, 128


class Linear(Protocol):
    """y = x W^T + b for x: [num_rows, in_features]."""

    # What a product reads of weights.
    num_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


class LibraryLinear:
    """cuBLAS."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight  # [out_features, in_features]
        self._bias = bias
        self.num_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(x, self._weight, self._bias)


# Nothing is compiled for one number of rows.
@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x, weight, scale, bias, out, num_rows, out_features, in_features,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    feature = tl.program_id(0) * FEATURES + tl.arange(0, FEATURES)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    is_row, is_feature = row < num_rows, feature < out_features
    weight_at = feature.to(tl.int64)[None, :] * in_features
    row_at = row.to(tl.int64)[:, None] * in_features
    total = tl.zeros([ROWS, FEATURES], tl.float32)
    for start in range(0, in_features, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        inside = depth < in_features
        rows = tl.load(x + row_at + depth[None, :], mask=is_row[:, None] & inside[None, :], other=0.0)
        weights = tl.load(weight + weight_at + depth[:, None], mask=inside[:, None] & is_feature[None, :], other=0)
        total += tl.dot(rows, weights.to(rows.dtype), input_precision="ieee")
    if HAS_SCALE:
        total *= tl.load(scale + feature, mask=is_feature, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + feature, mask=is_feature, other=0.0).to(tl.float32)[None, :]
    at = row.to(tl.int64)[:, None] * out_features + feature[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_row[:, None] & is_feature[None, :])


class TiledLinear:
    """Tiles of one size; with scales, of int8 weights. An int8 is a bfloat16 exactly, so its products are as exact."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features]; scale: [out_features] float32, of int8 weights."""
        self._weight, self._scale, self._bias = weight, scale, bias
        self.num_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, (out_features, in_features) = x.shape[0], self._weight.shape
        out = x.new_empty((num_rows, out_features))
        grid: Any = (triton.cdiv(out_features, TILE_FEATURES), triton.cdiv(num_rows, TILE_ROWS))
        _multiply[grid](
            x, self._weight, x if self._scale is None else self._scale, x if self._bias is None else self._bias, out,
            num_rows, out_features, in_features,
            HAS_SCALE=self._scale is not None, HAS_BIAS=self._bias is not None,
            ROWS=TILE_ROWS, FEATURES=TILE_FEATURES, DEPTH=TILE_DEPTH,
        )  # fmt: skip
        return out


class Int8Linear:
    """int8 weights: tiles for few rows; for many, whose time is that of multiplying, the library, on weights widened."""

    _FEW_ROWS = 64

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, same_bits: bool) -> None:
        self._weight, self._scale, self._bias = weight, scale, bias
        self._tiled = TiledLinear(weight, scale, bias)
        self.num_bytes = weight.nbytes
        self._same_bits = same_bits

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._same_bits or x.shape[0] <= self._FEW_ROWS:
            return self._tiled(x)
        widened = (self._weight.to(x.dtype) * self._scale.to(x.dtype)[:, None]).to(x.dtype)
        return functional.linear(x, widened, self._bias)


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[out_features, in_features] int8, and its scales: [out_features] float32."""
    scale = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-10)
    return (weight.float() / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale


def make_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, quantization: str, same_bits: bool, device: torch.device
) -> Linear:
    """`quantization`: none or int8; `same_bits`: each row those it has alone."""
    placed_bias = None if bias is None else bias.to(device)
    if quantization == "int8":
        quantised, scale = (each.to(device) for each in quantise(weight.to(device)))
        return Int8Linear(quantised, scale, placed_bias, same_bits)
    placed = weight.to(device)
    return TiledLinear(placed, None, placed_bias) if same_bits else LibraryLinear(placed, placed_bias)
