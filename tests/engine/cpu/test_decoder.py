"""All layers in one compiled call: the bits of the same layers one by one."""

import numpy as np
import pytest
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.kernels import bfloat16, int8
from paceline.engine.cpu.kernels.attention import part_address
from paceline.engine.cpu.kernels.rows import rms_norm
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from tests.engine.feeding import load_llama

NUM_LAYERS = 3
BLOCK_SIZE = 64
# The prompt, a round's rows, one row.
SIZES = (70, 5, 1)


def feed(
    model: CpuLlama, x: Array, attention: CpuPagedAttention, sizes: tuple[int, ...], is_compiled: bool = True
) -> Array:
    """Feeds the rows of one sequence, some at a time. Returns all rows' outputs."""
    outputs, position = [], 0
    for size in sizes:
        builder = BatchBuilder()
        builder.add([0] * size, position, [1, 0], [False] * size)
        batch = builder.build(model.padded(size))
        plan = attention.plan(batch.spans)
        rows = pad_rows(x[position : position + size], batch.num_tokens)
        if is_compiled:
            rows = model.run_layers(rows, attention, plan)
        else:
            for layer, cache in zip(model.layers, attention.cache, strict=True):
                eps = model.config.norm_eps
                row = rms_norm(rows, layer.attention_norm, eps)
                rows = layer.run(rows, row, plan, cache, part_address(x.dtype, cache), eps)
        outputs.append(rows[:size])
        position += size
    return np.concatenate(outputs)


@pytest.mark.skipif(
    not (bfloat16.DOT.is_available and int8.DOT.is_available), reason="elsewhere the library multiplies"
)
@pytest.mark.parametrize(("quantization", "cache"), [("none", "bfloat16"), ("int8", "bfloat16"), ("none", "int8")])
def test_layers_in_one_call_have_the_bits_of_layers_one_by_one(quantization: str, cache: str) -> None:
    model = load_llama("smollm2-135m", torch.bfloat16, quantization, num_layers=NUM_LAYERS, cache=cache)
    generator = torch.Generator().manual_seed(5)
    x = bits_of(torch.randn(sum(SIZES), model.config.hidden_size, generator=generator).bfloat16())
    one, other = (model.make_cache(2, BLOCK_SIZE) for _ in range(2))
    assert model._decoder(one, x.dtype) is not None, "these layers run in one call"
    assert np.array_equal(feed(model, x, one, SIZES), feed(model, x, other, SIZES, is_compiled=False))
    for layer, other_layer in zip(one.cache, other.cache, strict=True):
        for array, its_twin in zip(layer, other_layer, strict=True):
            assert array.tobytes() == its_twin.tobytes()


def test_layers_that_the_library_multiplies_run_one_by_one() -> None:
    model = load_llama("dummy:tiny", torch.float32)
    attention = model.make_cache(2, BLOCK_SIZE)
    assert model._decoder(attention, np.dtype(np.float32)) is None
