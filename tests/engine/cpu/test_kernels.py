"""The CPU kernels against the library's operations, and the sharing of work among cores."""

import numpy as np
import pytest
import torch
from torch.nn import functional
from transformers import LlamaConfig

from paceline.engine.cpu.kernels import bfloat16, int8, rows, tiles
from paceline.engine.cpu.kernels.rows import Activation, activate, add_scaled, cap_rows, rms_norm
from paceline.engine.cpu.kernels.scalars import bits_of, compiled, exp_of_negative, put, tensor_of, widen
from paceline.engine.cpu.linear import (
    Bfloat16Linear,
    CpuLinear,
    Int8Linear,
    WideningBfloat16Linear,
    WideningInt8Linear,
    make_cpu_linear,
)
from paceline.engine.models.architectures import ACTIVATIONS
from paceline.engine.models.model_config import ModelConfig
from paceline.errors import ConfigError

DTYPES = [torch.float32, torch.bfloat16]
SILU, GELU = (Activation(*ACTIVATIONS[name]) for name in ("silu", "gelu_pytorch_tanh"))


pytestmark = pytest.mark.usefixtures("two_workers")


def close(ours: torch.Tensor, expected: torch.Tensor) -> None:
    """As near as the dtype can say: float32 sums, then one rounding."""
    tolerance = {torch.float32: 2e-6, torch.bfloat16: 2**-8}[ours.dtype]
    torch.testing.assert_close(ours.float(), expected, rtol=tolerance, atol=tolerance * 1e-1)


def multiplied(linear: CpuLinear, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
    return tensor_of(linear(bits_of(x), None if residual is None else bits_of(residual)))


def check_rows_alone(linear: CpuLinear, x: torch.Tensor, residual: torch.Tensor | None, together: torch.Tensor) -> None:
    """Any number of the last rows have the bits they have among all."""
    for num_rows in range(1, x.shape[0] + 1):
        of_these = None if residual is None else residual[-num_rows:]
        assert torch.equal(multiplied(linear, x[-num_rows:], of_these), together[-num_rows:])


@compiled()
def exponentials(x: np.ndarray, out: np.ndarray) -> None:
    for i in range(x.size):
        out[i] = exp_of_negative(x[i])


def test_the_exponential_is_right_to_a_few_units_of_its_last_place() -> None:
    x = -np.concatenate((np.linspace(0, 86.9, 100_001), [0.0, 87.0, 88.0, 1000.0, np.inf])).astype(np.float32)
    ours = np.empty_like(x)
    exponentials(x, ours)
    exact = np.exp(np.maximum(x, -87).astype(np.float64))
    assert np.max(np.abs(ours - exact) / exact) < 2e-7
    assert ours[100_001] == 1.0


def test_bfloat16_bits_are_read_and_written_as_the_library_does() -> None:
    values = torch.cat((torch.randn(1000), torch.tensor([0.0, -0.0, 1 + 2**-8, 1 + 3 * 2**-8, float("inf")])))
    expected = values.bfloat16()
    stored = np.empty(len(values), np.uint16)
    for index, value in enumerate(values.numpy()):
        put(stored, index, value)
    assert np.array_equal(stored, bits_of(expected))
    assert [widen(bits) for bits in stored] == expected.float().tolist()


@pytest.mark.parametrize("num_rows", [1, rows.ROWS_TO_SHARE - 1, rows.ROWS_TO_SHARE, 100])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norm_and_gate_are_the_librarys(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x = (3 * torch.randn(num_rows, 100, generator=generator)).to(dtype)
    weight = torch.randn(100, generator=generator)
    close(tensor_of(rms_norm(bits_of(x), weight.numpy(), 1e-5)), functional.rms_norm(x.float(), (100,), weight, 1e-5))
    gate, up = x.float().chunk(2, dim=-1)
    close(tensor_of(activate(bits_of(x), SILU)), functional.silu(gate) * up)
    # At float32 the library's has few digits below 0.
    gelu = functional.gelu(gate.double(), approximate="tanh").float()
    close(tensor_of(activate(bits_of(x), GELU)), gelu * up)


@pytest.mark.parametrize("num_rows", [1, rows.ROWS_TO_SHARE])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_added_to_a_row_is_normed_and_scaled(dtype: torch.dtype, num_rows: int) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    x, added = (3 * torch.randn(2, num_rows, 100, generator=generator)).to(dtype)
    weight, none = torch.randn(100, generator=generator), np.empty(0, np.float32)
    normed = functional.rms_norm(added.float(), (100,), weight, 1e-5)
    close(tensor_of(add_scaled(bits_of(x), bits_of(added), weight.numpy(), 1e-5, 0.3)), x.float() + 0.3 * normed)
    close(tensor_of(add_scaled(bits_of(x), bits_of(added), none, 1e-5, 0.3)), x.float() + 0.3 * added.float())


def test_capped_rows_are_the_librarys() -> None:
    x = torch.cat((100 * torch.randn(3, 100), torch.tensor([[0.0, 1e-4, -1e30, 1e30]]).expand(3, 4)), 1)
    capped = x.clone().numpy()
    cap_rows(capped, 30.0)
    # Near 0 the difference of two numbers near 1 has few digits.
    torch.testing.assert_close(torch.from_numpy(capped), 30 * torch.tanh(x / 30), rtol=1e-6, atol=5e-6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_alone_and_where_the_cores_share_the_rows(dtype: torch.dtype) -> None:
    x = bits_of(torch.randn(2 * rows.ROWS_TO_SHARE, 96).to(dtype))
    weight = torch.randn(96).numpy()
    alone = [x[index : index + 1] for index in range(x.shape[0])]
    assert np.array_equal(np.concatenate([rms_norm(row, weight, 1e-6) for row in alone]), rms_norm(x, weight, 1e-6))
    assert np.array_equal(np.concatenate([activate(row, SILU) for row in alone]), activate(x, SILU))


def test_extreme_gates_are_exact_limits() -> None:
    gate_up = np.array([[200.0, -200.0, 0.0, 2.0, 3.0, 4.0]], np.float32)
    assert activate(gate_up, SILU).tolist()[0] == pytest.approx([400.0, 0.0, 0.0], abs=1e-30)


@pytest.mark.parametrize(("num_rows", "in_features", "out_features"), [(1, 64, 64), (3, 100, 70), (40, 260, 130)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_products_with_int8_weights_alone_are_those_of_the_rounded_weights(
    dtype: torch.dtype, num_rows: int, in_features: int, out_features: int
) -> None:
    generator = torch.Generator().manual_seed(num_rows)
    weight, bias = torch.randn(out_features, in_features, generator=generator), torch.randn(out_features)
    x, residual = torch.randn(num_rows, in_features).to(dtype), torch.randn(num_rows, out_features).to(dtype)
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded = (weight / scale).round() * scale
    linear = WideningInt8Linear(weight, bias)
    torch.testing.assert_close(
        multiplied(linear, x, residual).float(), x.float() @ rounded.T + bias + residual.float(),
        rtol=1e-5 if dtype is torch.float32 else 2**-8, atol=1e-4,
    )  # fmt: skip
    assert torch.equal(torch.cat([multiplied(linear, row) for row in x.split(1)]), multiplied(linear, x))


def rounded_rows(x: torch.Tensor) -> torch.Tensor:
    """Each row as the kernel has it, times its scale: 15 bits, within half a step of the row itself."""
    products = []
    for row in bits_of(x):
        parts, sums = np.zeros((2, x.shape[1]), np.int8), np.zeros((2, 1), np.int32)
        scale = int8.round_row(row, parts, sums)
        assert sums[:, 0].tolist() == parts.sum(axis=1, dtype=np.int64).tolist()
        whole = 128 * parts[0].astype(np.int64) + parts[1]
        exact = np.array([widen(value) for value in row], np.float64) / scale
        assert np.abs(whole - exact).max() < 0.51
        assert np.abs(whole).max() == 127 * 128
        products.append(whole * np.float64(scale))
    return torch.from_numpy(np.array(products))


@pytest.mark.skipif(not int8.DOT.is_available, reason="this processor has no AVX512-VNNI, so rows are not rounded")
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 96), (576, 960), (1, 1), (131, 37)])
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_int8_products_are_those_of_the_rounded_weights_and_each_row_has_its_own_bits(
    dtype: torch.dtype, has_bias: bool, in_features: int, out_features: int
) -> None:
    generator = torch.Generator().manual_seed(in_features)
    weight = torch.randn(out_features, in_features, generator=generator)
    bias = torch.randn(out_features, generator=generator) if has_bias else None
    x = torch.randn(2 * tiles.TILE_ROWS + 5, in_features, generator=generator).to(dtype)
    residual = torch.randn(x.shape[0], out_features, generator=generator).to(dtype)
    linear = make_cpu_linear(weight, bias, "int8")
    assert isinstance(linear, Int8Linear)
    scale = weight.abs().amax(dim=1, keepdim=True) / 127
    rounded_weight = (weight / scale).round().double() * scale.double()
    product = rounded_rows(x) @ rounded_weight.T + (0 if bias is None else bias.double())
    for added in (None, residual):
        expected = product if added is None else product + added.double()
        together = multiplied(linear, x, added)
        tolerance = 1e-5 if dtype is torch.float32 else 2**-8
        torch.testing.assert_close(together.double(), expected, rtol=tolerance, atol=tolerance)
        check_rows_alone(linear, x, added, together)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(
            Bfloat16Linear,
            marks=pytest.mark.skipif(not bfloat16.DOT.is_available, reason="this processor has no AVX512-BF16"),
        ),
        WideningBfloat16Linear,
    ],
)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(("in_features", "out_features"), [(64, 96), (576, 960), (2, 1), (130, 37)])
def test_bfloat16_products_are_exact_to_one_rounding_and_each_row_has_its_own_bits(
    kind: type[Bfloat16Linear | WideningBfloat16Linear], in_features: int, out_features: int, has_bias: bool
) -> None:
    generator = torch.Generator().manual_seed(in_features)
    weight = torch.randn(out_features, in_features, generator=generator).bfloat16()
    bias = torch.randn(out_features, generator=generator).bfloat16() if has_bias else None
    x = torch.randn(2 * tiles.TILE_ROWS + 5, in_features, generator=generator).bfloat16()
    residual = torch.randn(x.shape[0], out_features, generator=generator).bfloat16()
    linear = kind(weight, bias)
    ids = np.array([out_features - 1, 0])
    assert np.array_equal(linear.rows(ids, np.dtype(np.uint16)), bits_of(weight)[ids])
    product = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    for added in (None, residual):
        expected = product if added is None else product + added.double()
        together = multiplied(linear, x, added)
        assert together.dtype is torch.bfloat16
        torch.testing.assert_close(together.double(), expected, rtol=2**-8, atol=1e-4 * in_features**0.5)
        check_rows_alone(linear, x, added, together)


def test_a_head_dimension_that_the_kernels_can_not_take_is_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim is 6; it must be a multiple of 4"):
        ModelConfig.from_transformers(LlamaConfig(hidden_size=24, num_attention_heads=4, num_key_value_heads=2))
