"""Models that transformers' modules can't run over our cache are refused, by what is missing."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from paceline.engine.models.shapes import HEAD_IDS
from paceline.engine.models.weights import load_model
from paceline.engine.modules.probe import probe
from paceline.errors import ConfigError
from tests.engine.cpu.test_architectures import SHAPE, write_random
from tests.engine.cpu.test_llama import random_model
from tests.engine.cpu.test_modules import config_of
from tests.engine.feeding import load_modules
from tests.model_folder import change_config

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no interface": ("stablelm", {}, "model type 'stablelm' does not declare transformers' attention interface"),
    "another kind of layer": (
        "llama4_text", {},
        "has layers of type 'chunked_attention'; supported: full_attention, sliding_attention, linear_attention, conv",
    ),
    "another recurrent module": (
        "minimax", {"layer_types": ["linear_attention", "full_attention"] * 2},
        "layer 0 is recurrent; of such modules, only Qwen3_5GatedDeltaNet, ",
    ),
    "latent attention": (
        "deepseek_v3", {
            "q_lora_rank": 16, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
            "num_key_value_heads": 4, "first_k_dense_replace": 4,
        },
        "latent attention (MLA) is not supported",
    ),
    "an image's attention": (
        "gemma3_text", {"use_bidirectional_attention": True}, "use_bidirectional_attention is True; it must be unset",
    ),
    "other positions": ("roberta", {"is_decoder": True}, "model type 'roberta' does not count positions from 0"),
    "a mask": ("bert", {"is_decoder": False}, "the model's mask is neither causal nor a sliding window"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_computed_wrongly_is_refused(name: str, tmp_path: Path) -> None:
    kind, fields, reason = REFUSED[name]
    write_random(AutoConfig.for_model(kind, **SHAPE | fields), tmp_path)
    with pytest.raises(ConfigError) as caught:
        load_modules(str(tmp_path))
    assert reason in str(caught.value)


def test_a_layer_without_attention_is_refused() -> None:
    model = random_model(config_of("glm4"))
    model.config.num_hidden_layers = 5
    with pytest.raises(ConfigError, match="layer 4 has no attention"):
        probe(model, torch.device("cpu"))


def test_our_layers_name_the_other_implementation_where_it_would_do(tmp_path: Path) -> None:
    write_random(config_of("cohere2"), tmp_path)
    with pytest.raises(ConfigError, match=r"'cohere2' is not supported.*with `--implementation transformers` it runs"):
        load_model(str(tmp_path), torch.float32, implementation="own")
    assert load_model(str(tmp_path), torch.float32, implementation="auto").config.implementation == "transformers"


@pytest.mark.parametrize("name", ["dummy:tiny", "smollm3"])
def test_architectures_of_our_own_run_with_our_layers_by_default(name: str, tmp_path: Path) -> None:
    if name == "smollm3":
        write_random(AutoConfig.for_model(name, **SHAPE), tmp_path)
        name = str(tmp_path)
    assert load_model(name, torch.float32, implementation="auto").config.implementation == "own"


def test_weights_that_are_not_the_configs_are_refused_by_name(tmp_path: Path) -> None:
    write_random(config_of("glm4"), tmp_path)
    change_config(tmp_path, num_hidden_layers=5)
    with pytest.raises(ConfigError, match=r"model\.layers\.4\.\S+ is missing"):
        load_modules(str(tmp_path))
    change_config(tmp_path, num_hidden_layers=3)
    with pytest.raises(ConfigError, match=r"model\.layers\.3\.\S+ is unexpected"):
        load_modules(str(tmp_path))
    change_config(tmp_path, num_hidden_layers=4, intermediate_size=64)
    with pytest.raises(ConfigError, match="the weights do not match the config"):
        load_modules(str(tmp_path))


def test_a_distilled_draft_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_model("dummy:tiny", torch.float32, implementation="transformers")
    loaded.tensors[HEAD_IDS] = torch.arange(4)
    monkeypatch.setattr("tests.engine.feeding.load_model", lambda *_, **__: loaded)
    with pytest.raises(ConfigError, match=r"a distilled draft \(head_ids\) runs with our own layers only"):
        load_modules("dummy:tiny")
