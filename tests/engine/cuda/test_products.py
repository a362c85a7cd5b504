"""Products by tiles are the library's, of int8 weights those of the rounded weights, and each row has its own bits."""

import pytest
import torch

from paceline.engine.cuda.products import FEW_ROWS, MANY, Int8Linear, TiledLinear, spans_of
from paceline.engine.models.quantization import quantize
from tests.engine.cuda.device import DEVICE, HALF

# Whole tiles, sides that no tile divides, several spans of input features.
SHAPES = [(64, 128), (50, 70), (1, 300), (50, 1100)]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(("out_features", "in_features"), SHAPES)
def test_tiles_give_the_librarys_products(out_features: int, in_features: int, dtype: torch.dtype) -> None:
    weight, bias = random(out_features, in_features).to(dtype), random(out_features, seed=1).to(dtype)
    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    for num_rows in (1, 5, 16, 37):
        x = random(num_rows, in_features, seed=num_rows).to(dtype)
        for given in (None, bias):
            exact = torch.nn.functional.linear(x.double(), weight.double(), None if given is None else given.double())
            ours = TiledLinear(weight, None, given)(x)
            assert ours.dtype is dtype
            torch.testing.assert_close(ours.double(), exact, rtol=tolerance, atol=in_features * tolerance / 16)


@pytest.mark.parametrize("num_rows", [1, 5, 70, 130])
@pytest.mark.parametrize("in_features", [70, 300])
def test_int8_weights_are_the_rounded_weights(num_rows: int, in_features: int) -> None:
    """By tiles for few rows and where bits must be the same, else by tiles for many, of one span and of several."""
    weight, x = random(50, in_features), random(num_rows, in_features, seed=2)
    quantized, scale = quantize(weight)
    exact = x.double() @ (quantized.double() * scale.double()[:, None]).T
    for batch_invariant in (True, False):
        ours = Int8Linear(quantized, scale, None, batch_invariant)(x)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-4, atol=1e-4)
    assert (exact - x.double() @ weight.double().T).abs().max() > 1e-3


def test_a_row_has_the_bits_it_has_alone() -> None:
    """Also among so many that programs do not share a product's sums."""
    linear, x = TiledLinear(random(50, 1100), None, None), random(FEW_ROWS + 10, 1100, seed=3)
    together = linear(x)
    # At both ends of tiles of 16 rows, and of the rows that programs share.
    for row in (0, 15, 16, FEW_ROWS - 1, FEW_ROWS, len(x) - 1):
        assert torch.equal(together[row], linear(x[row : row + 1].contiguous())[0]), row
    assert torch.equal(together[:20], linear(x[:20].contiguous()))


def test_programs_are_enough_to_keep_a_gpu_busy() -> None:
    """Llama-3.2-1B's products; spans are neither too many nor too short."""
    found = {
        shape: spans_of(*shape) for shape in ((3072, 2048), (2048, 2048), (16384, 2048), (2048, 8192), (128256, 2048))
    }
    assert list(found.values()) == [8, 8, 1, 8, 1]
    assert [spans_of(2048, 8192, MANY, num_row_tiles) for num_row_tiles in (1, 2, 4)] == [4, 2, 1]
