"""transformers' modules over our cache: its logits at float32, and the same bits in any batch."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from paceline.engine.cpu.forward_invariance import check_forward
from paceline.engine.cpu.modules_model import CpuMatrix
from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.weights import load_model
from paceline.engine.modules.build import build_modules
from paceline.engine.modules.matrices import MatrixWeight
from paceline.errors import ConfigError
from tests.engine.cpu.test_architectures import (
    ALTERNATE,
    BLOCK_SIZE,
    LENGTH,
    SHAPE,
    TOKENS,
    WINDOW,
    check_bits,
    write_random,
)
from tests.engine.cpu.test_llama import check_logits, random_model
from tests.engine.cpu.test_recurrent import RECURRENT
from tests.engine.feeding import Feeder, load_modules

PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
# Architectures that our own layers do not have.
KNOWN: dict[str, dict[str, Any]] = {
    "qwen3_moe": EXPERTS | {"head_dim": 32, "num_experts": 8, "mlp_only_layers": [1], "norm_topk_prob": True},
    "gpt_oss": EXPERTS | ALTERNATE | {
        "head_dim": 32, "num_local_experts": 8, "intermediate_size": 32, "rope_parameters": PLAIN_ROPE
    },
    "granitemoe": EXPERTS | {"num_local_experts": 8, "intermediate_size": 32},
    "gemma4_text": {
        "head_dim": 16, "global_head_dim": 32, "sliding_window": WINDOW, "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": SHAPE["vocab_size"], "num_kv_shared_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
    },
    "cohere2": ALTERNATE | {"head_dim": 32},
    "exaone4": ALTERNATE | {"head_dim": 32},
    "glm4": {"head_dim": 32},
    # Its router multiplies in float32.
    "glm4_moe": EXPERTS | {"head_dim": 32, "n_routed_experts": 32, "first_k_dense_replace": 1},
    # Its masks know of the window, its attention does not.
    "phimoe": EXPERTS | {"num_local_experts": 8, "intermediate_size": 32, "sliding_window": WINDOW},
    "starcoder2": {"sliding_window": WINDOW},
    "phi": {},
}  # fmt: skip


def config_of(kind: str) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **SHAPE | KNOWN[kind])


@pytest.fixture(scope="module", params=KNOWN)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_random(config_of(kind), folder)
    return folder


def test_the_documentation_names_the_architectures_that_are_tested() -> None:
    page = (Path(__file__).parents[3] / "docs" / "models.md").read_text()
    named = {
        layers: {
            name for row in re.findall(rf"^\| {layers} \|([^|]*)\|", page, re.M) for name in re.findall(r"`(\w+)`", row)
        }
        for layers in ("own", "transformers'")
    }
    assert named == {"own": set(ARCHITECTURES), "transformers'": {*KNOWN, *RECURRENT}}


def test_logits_are_transformers_own(folder: Path, kind: str) -> None:
    tokens = TOKENS[:LENGTH]
    logits = Feeder(load_modules(str(folder)), block_size=BLOCK_SIZE).feed_split(tokens, [70, 1, 9, LENGTH - 80])
    check_logits(logits, random_model(config_of(kind)), tokens)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_row_has_the_same_bits_in_any_batch(folder: Path, dtype: torch.dtype) -> None:
    check_bits(load_modules(str(folder), dtype))


def test_what_transformers_keeps_in_float32_is_not_rounded(tmp_path: Path) -> None:
    write_random(config_of("glm4_moe"), tmp_path)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    loaded = load_model(str(tmp_path), torch.bfloat16, implementation="transformers")
    ours = build_modules(loaded.config, loaded.tensors, torch.bfloat16, lambda *_: None)
    assert ours.dtype == torch.bfloat16
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    torch.testing.assert_close(ours.get_buffer(name), theirs.get_buffer(name), rtol=0, atol=0)


def test_only_another_dtype_converts_a_weight() -> None:
    weight = MatrixWeight.of(None, torch.ones(4, 4, dtype=torch.bfloat16), None)
    for same in (weight.to("cpu"), weight.to(torch.bfloat16), weight.to(torch.ones(1, dtype=torch.bfloat16))):
        assert same is weight
    for convert in (lambda: weight.float(), lambda: weight.to("cpu", torch.float32), lambda: weight.to(torch.ones(1))):
        with pytest.raises(ConfigError, match=r"converts a weight to torch\.float32"):
            convert()


def test_the_check_at_load_finds_products_that_depend_on_the_number_of_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_random(config_of("qwen3_moe"), tmp_path)
    model = load_modules(str(tmp_path))
    assert check_forward(model, BLOCK_SIZE).variant_parts == []
    product = CpuMatrix.multiply
    # As a library may sum a row alone in another order.
    monkeypatch.setattr(CpuMatrix, "multiply", lambda self, x: product(self, x) * (1 + 1e-6 * (len(x) == 1)))
    assert "forward of 1 tokens" in check_forward(model, BLOCK_SIZE).variant_parts
