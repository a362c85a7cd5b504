"""What all linears have in common: how many rows they run, and what they add."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels import bfloat16, int8
from paceline.engine.cpu.kernels.scalars import bits_of, compiled, pad_rows, tensor_of
from paceline.engine.cpu.linear import (
    Bfloat16Linear,
    CpuLinear,
    DraftInt8Linear,
    Int8Linear,
    MatrixUnitLinear,
    PackedLinear,
    PlainLinear,
    WideningBfloat16Linear,
    WideningInt8Linear,
    make_cpu_linear,
)
from paceline.engine.threads import set_num_workers

MAX_ROWS = 2048
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], CpuLinear]
KINDS: list[MakeLinear] = [
    PlainLinear, PackedLinear, MatrixUnitLinear, Bfloat16Linear, Int8Linear, WideningInt8Linear, WideningBfloat16Linear,
]  # fmt: skip


@compiled()
def divide_registers(config: Array) -> None:
    bfloat16.load_config(config)


@compiled()
def read_registers(config: Array) -> None:
    bfloat16.save_config(config)


def multiplied(linear: CpuLinear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    """With the rows that padding takes, and without their products."""
    num_rows = linear.padded(x.shape[0])
    added = None if residual is None else pad_rows(bits_of(residual), num_rows)
    return tensor_of(linear(pad_rows(bits_of(x), num_rows), added))[: x.shape[0]]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_enough_and_stays_what_it_is(kind: MakeLinear) -> None:
    # The library that packs has no bfloat16 on some processors.
    weight = torch.randn(16, 16)
    linear = kind(weight if kind is PackedLinear else weight.bfloat16(), None)
    for num_rows in range(1, MAX_ROWS + 1):
        padded = linear.padded(num_rows)
        assert padded >= num_rows
        assert linear.padded(padded) == padded, "padding twice is padding once"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_adds_bias_and_residual(kind: MakeLinear, dtype: torch.dtype) -> None:
    if kind is Bfloat16Linear and not Bfloat16Linear.supports(torch.empty(2, 2, dtype=dtype)):
        pytest.skip("for bfloat16 weights, on processors with AVX512-BF16")
    if kind is MatrixUnitLinear and not MatrixUnitLinear.supports(torch.empty(2, 32, dtype=dtype)):
        pytest.skip("for bfloat16 weights, on processors with AMX")
    if kind is PackedLinear and not PackedLinear.supports(torch.empty(2, 2, dtype=dtype)):
        pytest.skip("torch's library multiplies no bfloat16 on this processor")
    if kind is WideningBfloat16Linear and dtype is torch.float32:
        pytest.skip("for bfloat16 weights")
    if kind is Int8Linear and not int8.DOT.is_available:
        pytest.skip("for processors with AVX512-VNNI")
    generator = torch.Generator().manual_seed(1)
    weight, bias = (torch.randn(shape, generator=generator).to(dtype) for shape in ((48, 64), (48,)))
    x, residual = (torch.randn(20, width, generator=generator).to(dtype) for width in (64, 48))
    linear = kind(weight, bias)
    # Sums of size 10: int8 weights are off by half a step of 1/127 of the largest, bfloat16 is rounded to 8 bits.
    tolerance = 0.5 if kind in (Int8Linear, WideningInt8Linear) else {torch.float32: 1e-4, torch.bfloat16: 0.25}[dtype]
    product = x.float() @ weight.float().T + bias.float()
    for added in (None, residual):
        y = multiplied(linear, x, added)
        expected = product if added is None else product + added.float()
        assert y.dtype is dtype
        torch.testing.assert_close(y.float(), expected, rtol=0, atol=tolerance)


def test_a_packed_linear_meets_few_counts_and_pads_few_rows() -> None:
    linear = PackedLinear(torch.randn(16, 16), None)
    counts = {linear.padded(num_rows) for num_rows in range(1, 512 + 1)}
    assert len(counts) == 93
    assert all(linear.padded(num_rows) == num_rows for num_rows in range(4, 33))
    assert all(linear.padded(num_rows) <= num_rows * 17 / 16 for num_rows in range(4, MAX_ROWS + 1))


@pytest.mark.skipif(not MatrixUnitLinear.supports(torch.empty(0, 32).bfloat16()), reason="for processors with AMX")
@pytest.mark.parametrize(
    ("in_features", "out_features"), [(32, 1), (64, 128), (576, 960), (1536, 576), (576, 4096), (576, 33)]
)
def test_on_a_matrix_unit_products_are_exact_and_each_row_has_its_own_bits(in_features: int, out_features: int) -> None:
    generator = torch.Generator().manual_seed(out_features)
    weight = torch.randn(out_features, in_features, generator=generator).bfloat16()
    bias = torch.randn(out_features, generator=generator).bfloat16()
    x = torch.randn(200, in_features, generator=generator).bfloat16()
    residual = torch.randn(200, out_features, generator=generator).bfloat16()
    linear = make_cpu_linear(weight, bias, "none")
    assert isinstance(linear, MatrixUnitLinear)
    for added in (None, residual):
        together = multiplied(linear, x, added)
        expected = x.float() @ weight.float().T + bias.float() + (0 if added is None else added.float())
        torch.testing.assert_close(together.float(), expected, rtol=2**-8, atol=2**-8)
        for num_rows in (1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 48, 64, 100):
            few = multiplied(linear, x[-num_rows:], None if added is None else added[-num_rows:])
            assert torch.equal(few, together[-num_rows:])


@pytest.mark.skipif(not MatrixUnitLinear.supports(torch.empty(0, 32).bfloat16()), reason="for processors with AMX")
def test_a_thread_finds_the_matrix_unit_as_it_left_it() -> None:
    """Whoever divided its registers before may rely on it."""
    linear = MatrixUnitLinear(torch.randn(64, 576).bfloat16(), None)
    x, workers = torch.randn(48, 576).bfloat16(), torch.get_num_threads()
    left, found = bfloat16.CONFIG.copy(), np.zeros_like(bfloat16.CONFIG)
    left[48:56] = 3
    set_num_workers(1)
    try:
        divide_registers(left)
        multiplied(linear, x)
        read_registers(found)
    finally:
        divide_registers(np.zeros_like(left))
        set_num_workers(workers)
    assert found.tolist() == left.tolist()


@pytest.mark.skipif(not DraftInt8Linear.supports(torch.empty(0, 32).bfloat16()), reason="for processors with AMX")
def test_a_drafts_int8_reads_many_rows_on_the_matrix_unit() -> None:
    weight, x = torch.randn(64, 576).bfloat16(), torch.randn(40, 576).bfloat16()
    both = make_cpu_linear(weight, None, "int8", batch_invariant=False)
    assert isinstance(both, DraftInt8Linear)
    for num_rows in range(1, 41):
        expected = (Int8Linear if num_rows <= 8 else MatrixUnitLinear)(weight, None)
        assert torch.equal(multiplied(both, x[:num_rows]), multiplied(expected, x[:num_rows]))
    assert isinstance(make_cpu_linear(weight, None, "int8"), Int8Linear), "a target's rows keep their bits"
