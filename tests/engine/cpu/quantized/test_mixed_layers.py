"""Files whose layers have different formats: each product gets rows padded as it needs them."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paceline.engine.cpu import linear
from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.linear import Bfloat16Linear, CpuLinear, MatrixUnitLinear
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.runner import CpuModel
from tests.engine.cpu.test_batch_invariance import RowDependent, first_difference
from tests.engine.feeding import Feeder, load_llama, load_modules
from tests.quantized_models import VOCAB, write_model

BLOCK_SIZE, LENGTH = 16, 60
LAYERS = {
    "the first in blocks": ["Q8_0", "BF16", "Q8_0"],
    "the first in bfloat16": ["BF16", "Q8_0"],
    "three formats": ["Q8_0", "Q4_0", "BF16"],
}
Write = Callable[[list[str]], CpuLlama]


@pytest.fixture
def load(tmp_path: Path) -> Write:
    def write(layers: list[str]) -> CpuLlama:
        path = write_model(tmp_path / "mixed.gguf", "Q8_0", 3, layers)
        return load_llama(str(path), torch.bfloat16, "auto", in_place=True)

    return write


@pytest.fixture(params=["own kernels", "the library"])
def products(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """What multiplies in bfloat16: without AVX512-BF16 and AMX it is oneDNN."""
    if request.param == "the library":
        for kind in (MatrixUnitLinear, Bfloat16Linear):
            monkeypatch.setattr(kind, "supports", lambda weight: False)


@pytest.mark.usefixtures("products")
@pytest.mark.parametrize("name", LAYERS)
def test_a_row_has_the_same_bits_in_any_batch(load: Write, name: str) -> None:
    model = load(LAYERS[name])
    tokens = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(0)).tolist()
    whole = Feeder(model, block_size=BLOCK_SIZE).feed_split(tokens, [LENGTH])
    for sizes in ([1] * LENGTH, [2] * 30, [17, 3, *[5] * 8]):
        logits = Feeder(model, block_size=BLOCK_SIZE).feed_split(tokens, sizes)
        assert torch.equal(logits, whole), f"{sizes[0]} at a time: {first_difference(logits, whole)}"
    assert check_batch_invariance(model, BLOCK_SIZE).variant_parts == []


@pytest.mark.slow
def test_a_row_has_the_same_bits_where_the_library_has_no_bfloat16_instructions() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__, "-k", "same_bits_in_any_batch"]
    less = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"}
    run = subprocess.run(command, cwd=Path(__file__).parents[4], env=os.environ | less, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]


@pytest.mark.parametrize("layers", LAYERS.values(), ids=LAYERS)
def test_rows_are_padded_as_every_layers_products_need(
    load: Write, layers: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its weights can be packed on any processor.
    monkeypatch.setattr(linear.MatrixUnitLinear, "supports", lambda weight: isinstance(weight, torch.Tensor))
    model = load(layers)
    products: list[CpuLinear] = [each for layer in model.layers for each in layer.products]
    assert any(isinstance(each, MatrixUnitLinear) for each in products)
    for num_rows in range(1, 200):
        padded = model.padded(num_rows)
        assert padded >= num_rows
        assert {each.padded(padded) for each in products} == {padded}


@pytest.mark.parametrize(
    ("layers", "quantization", "formats"),
    [
        (["Q8_0", "BF16"], "auto", "none+q8_0"),
        (["Q8_0", "Q4_0"], "auto", "q4_0+q8_0"),
        (["Q8_0", "Q4_0"], "int4", "q4_0+q4_1"),
        (["BF16"], "int8", "int8+q8_0"),
    ],
)
@pytest.mark.parametrize("load_as", [load_llama, load_modules])
def test_a_model_says_what_its_weights_are_in_and_not_what_was_asked_for(
    layers: list[str], quantization: str, formats: str, load_as: Callable[..., CpuModel], tmp_path: Path
) -> None:
    path = write_model(tmp_path / "mixed.gguf", "Q8_0", 3, layers)
    model = load_as(str(path), torch.bfloat16, quantization, in_place=True)
    assert model.quantization == formats


@pytest.mark.parametrize("layers", [["Q8_0", "BF16"], ["BF16", "Q8_0"], ["Q8_0", "Q8_0", "Q4_0"]])
def test_the_check_at_load_runs_a_layer_of_each_format(load: Write, layers: list[str]) -> None:
    model = load(layers)
    last = len(layers) - 1
    model.layers[last].down = RowDependent(model.layers[last].down)
    assert check_batch_invariance(model, BLOCK_SIZE).variant_parts == [f"decoder layer {last}"]
