"""EAGLE-1 heads are read in both forms, or refused by the name of what does not fit."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig
from paceline.errors import ConfigError
from tests.draft_heads import write_eagle
from tests.engine.models.test_draft_heads import FINGERPRINT, LAYER, NOTHING
from tests.model_folder import change_json

TARGET = ModelConfig.from_transformers(dummy_config("tiny"))


def load(folder: Path) -> Any:
    return load_draft_head(str(folder), TARGET, FINGERPRINT, torch.float32)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str]] = {
    "another width": (
        {"transformer_layer_config": LAYER | {"hidden_size": 128}},
        {},
        "hidden_size is 128; the target's is 64",
    ),
    "another vocabulary": (
        {"transformer_layer_config": LAYER | {"vocab_size": 320}},
        {},
        "vocab_size is 320; the target's is 512",
    ),
    "two layers": ({"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}, {}, "num_hidden_layers is 2; a head has 1"),
    "no layer": ({"transformer_layer_config": None}, {}, "transformer_layer_config is None; it must be an object"),
    "no bias": ({}, {"fusion_fc.bias": NOTHING}, "fc.bias is missing"),
    "a bias too many": ({"fusion_bias": False}, {}, "fc.bias is not part of a supported eagle head"),
    "three states": ({}, {"fusion_fc.weight": torch.ones(64, 192)}, r"fc.weight has shape \(64, 192\); it must be \(64, 128\)"),
    "a norm too few": ({"layernorms": True}, {}, "layers.0.input_layernorm.weight is missing"),
    "a norm too many": (
        {},
        {"transformer.input_layernorm.weight": torch.ones(64)},
        "layers.0.input_layernorm.weight is not part of a supported eagle head",
    ),
    "biases too few": (
        {"transformer_layer_config": LAYER | {"attention_bias": True}},
        {},
        "layers.0.self_attn.q_proj.bias is missing",
    ),
    "not a number": ({}, {"fusion_fc.bias": torch.full((64,), torch.inf)}, "fc.bias has numbers that are not finite"),
    "norms of another repository": ({"add_para_norm": True}, {}, "add_para_norm is True; it must be False"),
    "another target": ({"target_weights_fingerprint": "f00d"}, {}, "trained with the target weights 'f00d'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    changes, tensors, said = REFUSED[case]
    write_eagle(tmp_path, tensors, **changes)
    with pytest.raises(ConfigError, match=said) as refused:
        load(tmp_path)
    assert str(tmp_path) in str(refused.value)


def write_original(folder: Path, one: Path, **changes: Any) -> None:
    """Writes the head of folder `one` as the papers' repositories publish theirs: with the embedding, and old frequencies."""
    folder.mkdir()
    tensors = {
        name.replace("fusion_fc.", "fc.").replace("transformer.", "layers.0."): tensor
        for name, tensor in load_file(one / "model.safetensors").items()
    }
    tensors |= {"embed_tokens.weight": torch.ones(512, 64), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    save_file(tensors, folder / "model.safetensors")
    layer = json.loads((one / "config.json").read_text())["transformer_layer_config"]
    (folder / "config.json").write_text(json.dumps(layer | {"architectures": ["LlamaForCausalLM"]} | changes))


@pytest.mark.parametrize("changes", [{}, {"bias": True}])
def test_the_papers_own_names_are_read_alike(tmp_path: Path, changes: dict[str, Any]) -> None:
    write_eagle(tmp_path / "one")
    write_original(tmp_path / "other", tmp_path / "one", **changes)
    one, other = load(tmp_path / "one"), load(tmp_path / "other")
    assert one.format == other.format == "eagle"
    assert one.config.taps == other.config.taps == (2,)
    assert all(torch.equal(tensor, other.tensors[name]) for name, tensor in one.tensors.items())
    assert len(other.ids) == 512


def test_what_the_papers_config_says_of_a_bias_holds(tmp_path: Path) -> None:
    write_eagle(tmp_path / "one")
    write_original(tmp_path / "other", tmp_path / "one", bias=False)
    with pytest.raises(ConfigError, match=r"fc\.bias is not part of a supported eagle head"):
        load(tmp_path / "other")
    change_json(tmp_path / "other" / "config.json", num_hidden_layers=32)
    with pytest.raises(ConfigError, match="num_hidden_layers is 32; a head has 1"):
        load(tmp_path / "other")
