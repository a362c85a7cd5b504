"""Linear layers on a GPU: torch's product, or our tiles of bfloat16 or int8 weights.

Our product is batch invariant: equal tiles, and spans that depend only on the weight's shape, added in order. cuBLAS
selects its kernel by the number of rows.
"""

from typing import Any, Protocol

import torch
import triton
import triton.language as tl
from torch.nn import functional

from paceline.engine.models.quantization import quantise

# Rows, output features and input features of a tile.
TILE_ROWS, TILE_FEATURES, TILE_DEPTH = 16, 32, 128
# Number of programs that keeps all processors of a large GPU busy.
PROGRAMS = 512
# Most spans of a product, and the fewest input features in a span.
MOST_SPANS = 8
LEAST_SPAN = 2 * TILE_DEPTH
# Up to this many rows, reading the weights takes most of the time. With more rows there are enough programs without
# spans.
FEW_ROWS = 64


class CudaLinear(Protocol):
    """x: [num_rows, in_features]. Returns [num_rows, out_features]."""

    # Bytes of weights that a product reads.
    num_bytes: int
    # The most bytes that a product of more than FEW_ROWS rows takes for a copy of the weight.
    widened_bytes: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor: ...


@triton.jit
def _finish(
    total, scale, bias, out, at, feature, is_feature, is_inside, HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr
):
    if HAS_SCALE:
        total *= tl.load(scale + feature, mask=is_feature, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + feature, mask=is_feature, other=0.0).to(tl.float32)[None, :]
    tl.store(out + at, total.to(out.dtype.element_ty), mask=is_inside)


# `do_not_specialize`: all numbers of rows use the same compiled kernel.
@triton.jit(do_not_specialize=["num_rows"])
def _multiply(
    x, weight, scale, bias, partials, counts, out, num_rows, out_features, in_features, span, num_spans,
    HAS_SCALE: tl.constexpr, HAS_BIAS: tl.constexpr, IN_ONE: tl.constexpr,
    ROWS: tl.constexpr, FEATURES: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    # Programs start in the order of axis 0, so all row tiles read a tile of weights while it is in the GPU's cache.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.program_id(1) * FEATURES + tl.arange(0, FEATURES)
    is_row, is_feature = row < num_rows, feature < out_features
    is_inside = is_row[:, None] & is_feature[None, :]
    weight_at = feature.to(tl.int64)[None, :] * in_features
    row_at = row.to(tl.int64)[:, None] * in_features
    at = row.to(tl.int64)[:, None] * out_features + feature[None, :]
    total = tl.zeros([ROWS, FEATURES], tl.float32)
    # Each span's sum begins at 0 and is then added to the spans before it, in one program or in several: the result is
    # the same.
    own = tl.program_id(2)
    for each in range(0 if IN_ONE else own, num_spans if IN_ONE else own + 1):
        partial = tl.zeros([ROWS, FEATURES], tl.float32)
        for start in range(each * span, tl.minimum((each + 1) * span, in_features), DEPTH):
            depth = start + tl.arange(0, DEPTH)
            inside = depth < in_features
            rows = tl.load(x + row_at + depth[None, :], mask=is_row[:, None] & inside[None, :], other=0.0)
            weights = tl.load(weight + weight_at + depth[:, None], mask=inside[:, None] & is_feature[None, :], other=0)
            partial += tl.dot(rows, weights.to(rows.dtype), input_precision="ieee")
        total += partial
    if IN_ONE:
        _finish(total, scale, bias, out, at, feature, is_feature, is_inside, HAS_SCALE, HAS_BIAS)
    else:
        size = num_rows.to(tl.int64) * out_features
        tl.store(partials + own * size + at, total, mask=is_inside)
        # The tile's last program adds all spans. The barriers order its threads' stores before the count, and the loads
        # after it; ".cg" reads past the processor's own cache.
        tl.debug_barrier()
        count = counts + tl.program_id(0) * tl.num_programs(1) + tl.program_id(1)
        if tl.atomic_add(count, 1, sem="acq_rel") == num_spans - 1:
            tl.debug_barrier()
            total = tl.zeros([ROWS, FEATURES], tl.float32)
            for each in range(0, num_spans):
                total += tl.load(partials + each * size + at, mask=is_inside, other=0.0, cache_modifier=".cg")
            _finish(total, scale, bias, out, at, feature, is_feature, is_inside, HAS_SCALE, HAS_BIAS)
            tl.store(count, 0)


def spans_of(out_features: int, in_features: int) -> int:
    """Returns into how many spans of input features few rows' product is split, by the weight's shape alone."""
    programs = triton.cdiv(out_features, TILE_FEATURES)
    wanted = triton.next_power_of_2(triton.cdiv(PROGRAMS, programs))
    return max(1, min(wanted, MOST_SPANS, in_features // LEAST_SPAN))


class TiledLinear:
    """Our product. int8 weights lose nothing more in it: bfloat16 represents every int8 exactly."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features]; scale: [out_features] float32, only for int8 weights."""
        self._weight, self._scale, self._bias = weight, scale, bias
        self.num_bytes, self.widened_bytes = weight.nbytes, 0
        out_features, in_features = weight.shape
        self._span = TILE_DEPTH * triton.cdiv(in_features, spans_of(*weight.shape) * TILE_DEPTH)
        self._num_spans = triton.cdiv(in_features, self._span)
        # Programs of each tile that are done, between launches 0.
        num_tiles = triton.cdiv(FEW_ROWS, TILE_ROWS) * triton.cdiv(out_features, TILE_FEATURES)
        self._counts = torch.zeros(num_tiles, dtype=torch.int32, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        num_rows, (out_features, in_features) = x.shape[0], self._weight.shape
        out = x.new_empty((num_rows, out_features))
        in_one = self._num_spans == 1 or num_rows > FEW_ROWS
        partials = out if in_one else x.new_empty((self._num_spans, num_rows, out_features), dtype=torch.float32)
        scale, bias = (x if each is None else each for each in (self._scale, self._bias))
        grid: Any = (
            triton.cdiv(num_rows, TILE_ROWS),
            triton.cdiv(out_features, TILE_FEATURES),
            1 if in_one else self._num_spans,
        )
        _multiply[grid](
            x, self._weight, scale, bias, partials, self._counts, out, num_rows, out_features, in_features, self._span,
            self._num_spans, HAS_SCALE=self._scale is not None, HAS_BIAS=self._bias is not None, IN_ONE=in_one,
            ROWS=TILE_ROWS, FEATURES=TILE_FEATURES, DEPTH=TILE_DEPTH,
        )  # fmt: skip
        return out


class PlainLinear:
    """bfloat16 weights: our tiles for the rows of one tile, which they read faster than cuBLAS does, cuBLAS for more."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._tiled = TiledLinear(weight, None, bias)
        self.num_bytes, self.widened_bytes = weight.nbytes, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= TILE_ROWS:
            return self._tiled(x)
        return functional.linear(x, self._weight, self._bias)


class Int8Linear:
    """int8 weights: our tiles for few rows or with `batch_invariant`, dequantized with cuBLAS for many."""

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool
    ) -> None:
        self._weight, self._scale, self._bias = weight, scale, bias
        self._tiled = TiledLinear(weight, scale, bias)
        self.num_bytes = weight.nbytes
        # With its scales and without, in bfloat16.
        self.widened_bytes = 0 if batch_invariant else 2 * 2 * weight.numel()
        self._batch_invariant = batch_invariant

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._batch_invariant or x.shape[0] <= FEW_ROWS:
            return self._tiled(x)
        widened = (self._weight.to(x.dtype) * self._scale.to(x.dtype)[:, None]).to(x.dtype)
        return functional.linear(x, widened, self._bias)


def make_cuda_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, quantization: str, batch_invariant: bool, device: torch.device
) -> CudaLinear:
    """Returns the fastest linear layer for `weight`: [out_features, in_features].

    `quantization`: none or int8.
    """
    placed_bias = None if bias is None else bias.to(device)
    if quantization == "int8":
        quantised, scale = (each.to(device) for each in quantise(weight.to(device)))
        return Int8Linear(quantised, scale, placed_bias, batch_invariant)
    placed = weight.to(device)
    return TiledLinear(placed, None, placed_bias) if batch_invariant else PlainLinear(placed, placed_bias)
