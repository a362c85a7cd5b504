"""Elementwise functions of transformers' modules: an element has the same bits wherever it lies among a forward pass's."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoConfig

from paceline.engine.cpu.elementwise import VECTORS, Recorder, WholeVectors, num_shares, padded, shared_counts
from paceline.engine.cpu.forward_invariance import check_forward
from paceline.engine.cpu.modules_model import CpuModules
from tests.engine.cpu.test_architectures import BLOCK_SIZE, SHAPE, TOKENS, write_random
from tests.engine.feeding import Feeder, load_modules

# Rows of this width are shared between two threads within a vector, of any processor, if there are 23, 25, 31 or 37 of them.
WIDTH = 1458
FUNCTIONS: dict[str, Any] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu, tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "sigmoid": torch.sigmoid,
    "its method": lambda x: x.sigmoid(),
    "softplus": functional.softplus,
    "mish": functional.mish,
    "power": lambda x: x.abs() ** 0.3,
    "of named arguments": lambda x: functional.silu(input=x),
    "of a part": lambda x: functional.silu(torch.cat([x, x], 1)[:, : x.shape[1]]),
}


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_element_has_the_same_bits_in_any_tensor(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS[name]
    x = (3 * torch.randn((50, WIDTH + 3), generator=torch.Generator().manual_seed(0))).to(dtype)
    with Recorder() as recorder:
        function(x[:1])
    with WholeVectors(recorder.functions):
        whole = function(x)
        for num_rows in (1, 2, 3, 23, 25, 31):
            found = function(x[:num_rows])
            assert found.shape == (num_rows, x.shape[1])
            assert torch.equal(found, whole[:num_rows]), f"{num_rows} rows"


def test_what_is_rounded_exactly_is_left_alone() -> None:
    x = torch.ones(3, 5)
    with Recorder() as recorder:
        (x * 2 + x / 3 - x**2).exp().tanh().cos().relu()
    assert recorder.functions == set()


@pytest.mark.parametrize("num_threads", [1, 2, 3, 6, 16, 61])
def test_each_threads_share_is_whole_vectors(num_threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: num_threads)
    for num_elements in (1, 64, 65, 1440, 32_768, 32_769, 33_120, 98_305, 2_359_297):
        found = padded(num_elements)
        assert found >= num_elements
        # GELU's and the others'.
        for shares in (num_threads, num_shares(found)):
            assert found % (VECTORS * shares) == 0
            assert found <= num_elements * 1.2 + VECTORS * math.lcm(shares, num_threads)


def load(folder: Path, kind: str, dtype: torch.dtype, more: dict[str, Any]) -> CpuModules:
    config = AutoConfig.for_model(kind, **SHAPE | {"intermediate_size": WIDTH, "num_hidden_layers": 2} | more)
    write_random(config, folder)
    return load_modules(str(folder), dtype)


KINDS: dict[str, tuple[str, torch.dtype, dict[str, Any]]] = {
    "SiLU in float32": ("glm4", torch.float32, {"head_dim": 32}),
    "GELU in bfloat16": ("starcoder2", torch.bfloat16, {"hidden_act": "gelu_pytorch_tanh"}),
}


@pytest.mark.usefixtures("two_workers")
@pytest.mark.parametrize("name", KINDS)
def test_rows_have_the_same_bits_however_threads_share_them(name: str, tmp_path: Path) -> None:
    model = load(tmp_path, *KINDS[name])
    counts = [23, 25, 31, 37, 23]
    whole = Feeder(model, block_size=BLOCK_SIZE).feed_split(TOKENS[: sum(counts)], [sum(counts)])
    assert torch.equal(Feeder(model, block_size=BLOCK_SIZE).feed_split(TOKENS[: sum(counts)], counts), whole)


@pytest.mark.usefixtures("two_workers")
def test_the_check_at_load_runs_as_many_rows_as_threads_share_within_a_vector(tmp_path: Path) -> None:
    kind, dtype, more = KINDS["SiLU in float32"]
    model = load(tmp_path, kind, dtype, more | {"num_hidden_layers": 8})
    assert 23 in shared_counts(model.widths, 100)
    assert check_forward(model, BLOCK_SIZE).variant_parts == []
    model._functions.clear()
    assert "forward of 23 tokens" in check_forward(model, BLOCK_SIZE).variant_parts
