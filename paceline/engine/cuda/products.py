"""Linear layers on a GPU: torch's product, or our tiles of bfloat16 or int8 weights.

Our product of few rows is batch invariant: equal tiles, and spans that depend only on the weight's shape, added in order.
cuBLAS selects its kernel by the number of rows.
"""

from typing import Any, NamedTuple, Protocol

import torch
import triton
import triton.language as tl
from torch.nn import functional

from paceline.engine.models.quantization import INT8, quantize


class Tile(NamedTuple):
    """What a program multiplies at a time, and how it is launched."""

    rows: int
    # Of output, and of input.
    features: int
    depth: int
    num_stages: int
    # That keeps all processors of a large GPU busy.
    num_programs: int

    @property
    def least_span(self) -> int:
        """Fewest input features in a span."""
        return 2 * self.depth


FEW, MANY = Tile(16, 32, 128, num_stages=3, num_programs=512), Tile(128, 64, 64, num_stages=4, num_programs=128)
# Most spans of a product.
MOST_SPANS = 8
# Up to this many rows, reading the weights takes most of the time. With more rows there are enough programs without
# spans.
FEW_ROWS = 64


class CudaLinear(Protocol):
    """x: [num_rows, in_features]. Returns [num_rows, out_features]."""

    # Bytes of weights that a product reads.
    num_bytes: int

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


def spans_of(out_features: int, in_features: int, tile: Tile = FEW, num_row_tiles: int = 1) -> int:
    """Returns into how many spans of input features a product is split, so that there are enough programs."""
    programs = num_row_tiles * triton.cdiv(out_features, tile.features)
    wanted = triton.next_power_of_2(triton.cdiv(tile.num_programs, programs))
    return max(1, min(wanted, MOST_SPANS, in_features // tile.least_span))


class TiledLinear:
    """Our product. int8 weights lose nothing more in it: bfloat16 represents every int8 exactly."""

    def __init__(self, weight: torch.Tensor, scale: torch.Tensor | None, bias: torch.Tensor | None) -> None:
        """weight: [out_features, in_features]; scale: [out_features] float32, only for int8 weights."""
        self._weight, self._scale, self._bias = weight, scale, bias
        self.num_bytes = weight.nbytes
        # Programs of each tile that are done, between launches 0.
        num_tiles = max(MANY.num_programs, triton.cdiv(FEW_ROWS, FEW.rows) * triton.cdiv(weight.shape[0], FEW.features))
        self._counts = torch.zeros(num_tiles, dtype=torch.int32, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies with tiles for few rows, which are batch invariant for any number."""
        # All programs add the spans in the same order, however many share the work.
        return self._multiply(x, FEW, spans_of(*self._weight.shape), in_one=x.shape[0] > FEW_ROWS)

    def multiply_many(self, x: torch.Tensor) -> torch.Tensor:
        """Multiplies with tiles for many rows."""
        out_features, in_features = self._weight.shape
        num_spans = spans_of(out_features, in_features, MANY, triton.cdiv(x.shape[0], MANY.rows))
        return self._multiply(x, MANY, num_spans, in_one=False)

    def _multiply(self, x: torch.Tensor, tile: Tile, num_spans: int, in_one: bool) -> torch.Tensor:
        num_rows, (out_features, in_features) = x.shape[0], self._weight.shape
        span = tile.depth * triton.cdiv(in_features, num_spans * tile.depth)
        num_spans = triton.cdiv(in_features, span)
        in_one = in_one or num_spans == 1
        out = x.new_empty((num_rows, out_features))
        partials = out if in_one else x.new_empty((num_spans, num_rows, out_features), dtype=torch.float32)
        scale, bias = (x if each is None else each for each in (self._scale, self._bias))
        grid: Any = (
            triton.cdiv(num_rows, tile.rows), triton.cdiv(out_features, tile.features), 1 if in_one else num_spans,
        )  # fmt: skip
        _multiply[grid](
            x, self._weight, scale, bias, partials, self._counts, out, num_rows, out_features, in_features, span,
            num_spans, HAS_SCALE=self._scale is not None, HAS_BIAS=self._bias is not None, IN_ONE=in_one,
            ROWS=tile.rows, FEATURES=tile.features, DEPTH=tile.depth, num_stages=tile.num_stages,
        )  # fmt: skip
        return out


class PlainLinear:
    """bfloat16 weights: our tiles for the rows of one tile, which they read faster than cuBLAS does, cuBLAS for more."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight, self._bias = weight, bias
        self._tiled = TiledLinear(weight, None, bias)
        self.num_bytes = weight.nbytes

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] <= FEW.rows:
            return self._tiled(x)
        return functional.linear(x, self._weight, self._bias)


class Int8Linear:
    """int8 weights: our tiles for few rows or with `batch_invariant`, larger ones for many.

    Dequantized for cuBLAS, the weights are written and read once more, which takes twice as long for 512 rows.
    """

    def __init__(
        self, weight: torch.Tensor, scale: torch.Tensor, bias: torch.Tensor | None, batch_invariant: bool
    ) -> None:
        self._tiled = TiledLinear(weight, scale, bias)
        self.num_bytes = weight.nbytes
        self._batch_invariant = batch_invariant

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self._batch_invariant or x.shape[0] <= FEW_ROWS:
            return self._tiled(x)
        return self._tiled.multiply_many(x)


def make_cuda_linear(
    weight: torch.Tensor, bias: torch.Tensor | None, quantization: str, batch_invariant: bool, device: torch.device
) -> CudaLinear:
    """Returns the fastest linear layer for `weight`: [out_features, in_features].

    `quantization`: none or int8.
    """
    placed_bias = None if bias is None else bias.to(device)
    if quantization == INT8:
        quantized, scale = (each.to(device) for each in quantize(weight.to(device)))
        return Int8Linear(quantized, scale, placed_bias, batch_invariant)
    placed = weight.to(device)
    return TiledLinear(placed, None, placed_bias) if batch_invariant else PlainLinear(placed, placed_bias)
