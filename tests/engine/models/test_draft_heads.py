"""Draft heads are read, or refused by the name of what does not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.engine.models.draft_heads.head import TARGET_KEY
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig
from paceline.errors import ConfigError
from tests.draft_heads import write_head
from tests.model_folder import change_json

TARGET = ModelConfig.from_transformers(dummy_config("tiny"))
FINGERPRINT = "0123456789abcdef"


def load(folder: Path, target: ModelConfig = TARGET) -> Any:
    return load_draft_head(str(folder), target, FINGERPRINT, torch.float32)


LAYER = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 512, "max_position_embeddings": 512,
}  # fmt: skip
NOTHING = torch.empty(0)
# What changes in the folder, and what the error says.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str]] = {
    "another kind": ({"speculators_model_type": "medusa"}, {}, "speculators_model_type is 'medusa'; supported: eagle3, dflash, eagle"),
    "another width": (
        {"transformer_layer_config": LAYER | {"hidden_size": 128}},
        {},
        "hidden_size is 128; the target's is 64",
    ),
    "two layers": ({"transformer_layer_config": LAYER | {"num_hidden_layers": 2}}, {}, "num_hidden_layers is 2; a head has 1"),
    "an unknown layer": ({"transformer_layer_config": {"model_type": "bert"}}, {}, "model type 'bert' is not supported"),
    "no layer": ({"transformer_layer_config": None}, {}, "transformer_layer_config is None; it must be an object"),
    "half layers": ({"eagle_aux_hidden_state_layer_ids": [0, 0.5, 2]}, {}, r"is \[0, 0.5, 2\]; they must be numbers"),
    "no numbers": ({"eagle_aux_hidden_state_layer_ids": "012"}, {}, "is 012; they must be numbers"),
    "a word for a layer": ({"transformer_layer_config": "llama"}, {}, "transformer_layer_config is 'llama'; it must be"),
    "a number for a name": ({"speculators_model_type": None, "architectures": [3]}, {}, "speculators_model_type is None"),
    "not a number": ({}, {"norm.weight": torch.full((64,), torch.nan)}, "norm.weight has numbers that are not finite"),
    "layers that the target lacks": (
        {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]},
        {},
        r"eagle_aux_hidden_state_layer_ids is \[0, 1, 3\]; they must be numbers that increase within the target's 2 layers",
    ),
    "layers out of order": ({"eagle_aux_hidden_state_layer_ids": [1, 0, 2]}, {}, r"is \[1, 0, 2\]; they must be numbers"),
    "two states": ({"eagle_aux_hidden_state_layer_ids": [0, 2]}, {}, r"fc.weight has shape \(64, 192\); it must be \(64, 128\)"),
    "another vocabulary": ({}, {"t2d": torch.ones(320, dtype=torch.bool)}, "t2d knows 320 tokens; the target has 512"),
    "a token twice": ({}, {"d2t": -torch.arange(341)}, r"d2t must name 341 different tokens in \[0, 512\)"),
    "a token outside": ({}, {"d2t": torch.full((341,), 400)}, r"d2t must name 341 different tokens in \[0, 512\)"),
    "two lists of tokens": ({}, {"t2d": torch.ones(512, dtype=torch.bool)}, "d2t and t2d name different tokens"),
    "no list of tokens": ({}, {"d2t": NOTHING}, "its lm_head has 341 tokens and d2t is missing; the target has 512"),
    "another head size": ({"draft_vocab_size": 340}, {}, "d2t must name 340 different tokens"),
    "no fusion": ({}, {"fc.weight": NOTHING}, "fc.weight is missing"),
    "a norm too few": ({"norm_before_fc": True}, {}, "input_norm.weight is missing"),
    "a norm too many": ({}, {"fc_norm.0.weight": torch.ones(64)}, "fc_norm.0.weight is not part of a supported eagle3 head"),
    "another target": ({TARGET_KEY: "f00d"}, {}, f"trained with the target weights 'f00d'; these are {FINGERPRINT!r}"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    changes, tensors, said = REFUSED[case]
    write_head(tmp_path, tensors, **changes)
    with pytest.raises(ConfigError, match=said) as refused:
        load(tmp_path)
    assert str(tmp_path) in str(refused.value)


@pytest.mark.parametrize("broken", ["config.json", "model.safetensors"])
def test_a_file_that_is_missing_or_broken_is_named(tmp_path: Path, broken: str) -> None:
    write_head(tmp_path)
    (tmp_path / broken).write_text("neither")
    with pytest.raises(ConfigError, match="draft_head"):
        load(tmp_path)
    (tmp_path / broken).unlink()
    with pytest.raises(ConfigError, match="draft_head"):
        load(tmp_path)


def test_a_head_of_its_target_is_read(tmp_path: Path) -> None:
    write_head(tmp_path, **{TARGET_KEY: FINGERPRINT, "eagle_aux_hidden_state_layer_ids": None})
    deep = replace(TARGET, layers=TARGET.layers * 4)
    head = load(tmp_path, deep)
    assert head.config.taps == (2, 4, 5)
    assert set(head.ids.tolist()) == {each for each in range(512) if each % 3 != 1}


def test_the_papers_own_names_are_read_alike(tmp_path: Path) -> None:
    """As their repositories publish heads: the layer's fields in the config itself, and `midlayer`."""
    write_head(tmp_path / "one")
    tensors = load_file(tmp_path / "one" / "model.safetensors")
    (tmp_path / "other").mkdir()
    save_file(
        {name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()},
        tmp_path / "other" / "model.safetensors",
    )
    given = json.loads((tmp_path / "one" / "config.json").read_text())
    fields = {
        key: given[key] for key in ("draft_vocab_size", "norm_before_residual", "eagle_aux_hidden_state_layer_ids")
    }
    fields |= given["transformer_layer_config"] | {"architectures": ["LlamaForCausalLMEagle3"]}
    (tmp_path / "other" / "config.json").write_text(json.dumps(fields))
    one, other = (load(tmp_path / name) for name in ("one", "other"))
    assert one.config == replace(other.config, layer=replace(other.config.layer, source=one.config.layer.source))
    assert one.tensors.keys() == other.tensors.keys()
    assert all(torch.equal(one.tensors[name], other.tensors[name]) for name in one.tensors)


def test_a_window_is_the_layers(tmp_path: Path) -> None:
    """Training scripts make such heads, also of layers that have no windows elsewhere."""
    write_head(tmp_path)
    layer = json.loads((tmp_path / "config.json").read_text())["transformer_layer_config"]
    window = {"layer_types": ["sliding_attention"], "sliding_window": 48}
    change_json(tmp_path / "config.json", transformer_layer_config=layer | window)
    assert [each.window for each in load(tmp_path).config.layer.layers] == [48]
