"""Products with quantized weights: the bits of a plain reference, in every format, for any rows."""

import numpy as np
import pytest

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME, pack
from paceline.engine.cpu.kernels.quantized.product import UNIT_FROM_ROWS
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.linear import QuantizedLinear, make_cpu_linear
from tests.engine.cpu.quantized.blocks import random_blocks, rounded_rows

FORMATS = tuple(BY_NAME)
# Counts of rows that take the dot product, in one part and in several, and the matrix unit, with whole units and without.
SPLITS = (1, 2, 3, 4, 5, 7, 8, 13, UNIT_FROM_ROWS - 1, UNIT_FROM_ROWS, 64)
NUM_ROWS = 2 * UNIT_FROM_ROWS + 3


def rows_of(num_features: int, seed: int = 1) -> Array:
    """Rows with features of very different sizes, as a model has them, and one row of 0."""
    generator = np.random.default_rng(seed)
    x = generator.standard_normal((NUM_ROWS, num_features)) * np.exp(generator.standard_normal(num_features))
    x[7] = 0
    return x.astype(np.float32)


def fused(a: Array, b: Array, c: Array) -> Array:
    """a * b + c as float32, rounded once. The exact sum is rounded to odd in float64, which then rounds right."""
    product = a.astype(np.float64) * b.astype(np.float64)  # exact
    total = product + c
    lost = np.where(np.abs(product) >= np.abs(c), (product - total) + c, (c - total) + product)
    is_even = total.view(np.int64) % 2 == 0
    step = np.where((lost > 0) == (total > 0), 1, -1)
    odd = (total.view(np.int64) + np.where((lost != 0) & is_even, step, 0)).view(np.float64)
    return odd.astype(np.float32)


def reference(x: Array, name: str, data: Array) -> Array:
    """What `kernels.quantized` says, group by group: [num_rows, out_features] float32."""
    codes, scales, offsets = unpacked(name, data)
    numbers, row_scales = rounded_rows(x)
    width = codes.shape[1] // scales.shape[1]
    total = np.zeros((x.shape[0], codes.shape[0]), np.float32)
    for group in range(scales.shape[1]):
        part = slice(group * width, (group + 1) * width)
        whole = (numbers[:, part].astype(np.int64) @ codes[:, part].T.astype(np.int64)).astype(np.float32)
        of_rows = row_scales[:, group * width // 32, None]
        product = whole * of_rows
        shared = of_rows * numbers[:, part].sum(1, keepdims=True, dtype=np.float32)
        total = fused(product, scales[:, group], total)
        if offsets is not None:
            total = fused(shared, offsets[:, group], total)
    return total


def unpacked(name: str, data: Array) -> tuple[Array, Array, Array | None]:
    """Codes less their zero, scales and offsets by the definitions of the formats: [out_features, in_features], [out_features, groups]."""
    fmt, rows = BY_NAME[name], data.shape[0]
    blocks = data.reshape(-1, fmt.block_bytes)
    half = lambda at: blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32)  # noqa: E731
    if name == "Q8_0":
        codes, scales, offsets = blocks[:, 2:].view(np.int8), half(0), None
    elif name == "Q6_K":
        low, high = blocks[:, :128].reshape(-1, 2, 64), blocks[:, 128:192].reshape(-1, 2, 32)
        parts = [(low[:, :, :32] & 15, 0), (low[:, :, 32:] & 15, 2), (low[:, :, :32] >> 4, 4), (low[:, :, 32:] >> 4, 6)]
        codes = np.stack([part | ((high >> shift & 3) << 4) for part, shift in parts], 2).reshape(len(blocks), 256)
        codes = codes.astype(np.int8) - np.int8(32)
        scales, offsets = half(208) * blocks[:, 192:208].copy().view(np.int8).astype(np.float32), None
    elif name in ("Q4_K", "Q5_K"):
        packed = blocks[:, 4:16].astype(np.int64)
        low6, high6 = packed[:, :4] & 63, packed[:, 4:8] & 63
        more = packed[:, 8:]
        scale = np.concatenate([low6, (more & 15) | (packed[:, :4] >> 6 << 4)], 1)
        offset = np.concatenate([high6, (more >> 4) | (packed[:, 4:8] >> 6 << 4)], 1)
        low = blocks[:, -128:].reshape(-1, 4, 32)
        codes = np.stack([low & 15, low >> 4], 2).reshape(len(blocks), 8, 32)
        if name == "Q5_K":
            fifth = blocks[:, None, 16:48] >> np.arange(8, dtype=np.uint8)[None, :, None] & 1
            codes = codes | (fifth << 4)
        codes = codes.reshape(len(blocks), 256)
        scales, offsets = half(0) * scale.astype(np.float32), -half(2) * offset.astype(np.float32)
    else:
        low = blocks[:, -16:]
        codes = np.concatenate([low & 15, low >> 4], 1)
        has_offset = name.endswith("1")
        if name.startswith("Q5"):
            start = 4 if has_offset else 2
            fifth = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")
            codes = codes | (fifth << 4)
        if not has_offset:
            codes = codes.astype(np.int8) - np.int8(16 if name == "Q5_0" else 8)
        scales, offsets = half(0), half(2) if has_offset else None
    return codes.reshape(rows, -1), scales.reshape(rows, -1), None if offsets is None else offsets.reshape(rows, -1)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("out_features", "in_features"), [(32, 256), (96, 512), (7, 768), (100, 1280)])
def test_a_product_has_the_bits_of_the_reference(name: str, out_features: int, in_features: int) -> None:
    weight = random_blocks(name, out_features, in_features)
    x = rows_of(in_features)
    found = QuantizedLinear((weight,), None)(x)
    np.testing.assert_array_equal(found, reference(x, name, weight.data))


@pytest.mark.parametrize("name", [each.name for each in BY_NAME.values() if each.unit_groups == 1])
def test_a_row_may_end_within_a_chunk(name: str) -> None:
    weight = random_blocks(name, 40, 576)
    x = rows_of(576)
    np.testing.assert_array_equal(QuantizedLinear((weight,), None)(x), reference(x, name, weight.data))


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_has_the_same_bits_beside_any_others(name: str) -> None:
    linear = QuantizedLinear((random_blocks(name, 64, 512),), None)
    x = rows_of(512)
    whole = linear(x)
    for split in SPLITS:
        parts = [linear(np.ascontiguousarray(x[first : first + split])) for first in range(0, NUM_ROWS, split)]
        np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_the_gguf_library_reads(name: str) -> None:
    weight = random_blocks(name, 64, 512)
    rows = QuantizedLinear((weight,), None).rows(np.arange(64), np.dtype(np.float32))
    np.testing.assert_allclose(rows, weight.dequantized(), rtol=1e-6, atol=1e-7)


def test_parts_of_several_formats_stand_one_below_the_other() -> None:
    parts = tuple(random_blocks(name, rows, 512, rows) for name, rows in (("Q4_K", 64), ("Q6_K", 32), ("Q8_0", 9)))
    x = rows_of(512)
    alone = [QuantizedLinear((part,), None)(x) for part in parts]
    np.testing.assert_array_equal(QuantizedLinear(parts, None)(x), np.concatenate(alone, 1))


def test_bias_and_residual_are_added() -> None:
    import torch

    weight, x = random_blocks("Q4_1", 64, 256), rows_of(256)
    bias, residual = torch.arange(64, dtype=torch.float32), np.full((NUM_ROWS, 64), 3, np.float32)
    plain = QuantizedLinear((weight,), None)(x)
    np.testing.assert_array_equal(QuantizedLinear((weight,), bias)(x, residual), plain + bias.numpy() + residual)


def test_bfloat16_rows_give_what_the_same_numbers_give_as_float32() -> None:
    import torch

    weight = random_blocks("Q4_K", 64, 256)
    rounded = torch.from_numpy(rows_of(256)).bfloat16()
    linear = QuantizedLinear((weight,), None)
    found, wide = tensor_of(linear(bits_of(rounded))), torch.from_numpy(linear(rounded.float().numpy()))
    assert torch.equal(found, wide.bfloat16())


def test_a_row_order_gives_the_files_rows() -> None:
    weight, x = random_blocks("Q5_1", 64, 256), rows_of(256)
    order = np.random.default_rng(3).permutation(64)
    linear = QuantizedLinear((type(weight)(weight.format, weight.shape, weight.data, order),), None)
    np.testing.assert_array_equal(linear(x), QuantizedLinear((weight,), None)(x)[:, order])


@pytest.mark.parametrize("name", FORMATS)
def test_packed_weights_take_as_much_memory_as_the_file(name: str) -> None:
    """Scales of 6 bits take 8: 3 % more."""
    weight = random_blocks(name, 64, 512)
    packed = pack(weight.data, None, BY_NAME[name], 512)
    assert weight.data.nbytes <= packed.nbytes <= 1.03 * weight.data.nbytes


@pytest.mark.parametrize("name", [name for name, fmt in BY_NAME.items() if fmt.bits > 4])
def test_weights_of_more_bits_are_rounded_to_the_nearest_of_sixteen(name: str) -> None:
    tensor = random_blocks(name, 70, 768)
    rounded = QuantizedLinear((tensor,), None, most_bits=4).rows(np.arange(70), np.float32).reshape(70, -1, 32)
    groups = tensor.dequantized().reshape(rounded.shape)
    step = np.ptp(groups, 2, keepdims=True) / 15
    # Scale and offset have 11 binary digits.
    lost = (np.abs(groups).max(2, keepdims=True) + 15 * step) / 2**11
    assert (np.abs(rounded - groups) <= step / 2 + lost).all()
    assert (rounded != groups).any()


@pytest.mark.parametrize(
    ("quantization", "is_target", "name"),
    [("auto", True, "Q5_0"), ("auto", False, "Q4_1"), ("int8", False, "Q5_0"), ("int4", True, "Q4_1")],
)
def test_a_draft_has_four_bits_unless_asked_otherwise(quantization: str, is_target: bool, name: str) -> None:
    linear = make_cpu_linear((random_blocks("Q5_0", 32, 256),), None, quantization, batch_invariant=is_target)
    assert isinstance(linear, QuantizedLinear)
    assert linear.formats == (name.lower(),)
