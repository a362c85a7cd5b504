"""DFlash heads are read in both forms, or refused by the name of what does not fit."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig
from paceline.errors import ConfigError
from tests.draft_heads import write_dflash
from tests.engine.models.test_draft_heads import FINGERPRINT, LAYER, NOTHING

TARGET = ModelConfig.from_transformers(dummy_config("tiny"))
TWO = LAYER | {"num_hidden_layers": 2, "head_dim": 16}
SLIDING = {"use_sliding_window": True, "sliding_window": 48, "layer_types": ["sliding_attention", "full_attention"]}


def load(folder: Path, target: ModelConfig = TARGET) -> Any:
    return load_draft_head(str(folder), target, FINGERPRINT, torch.float32)


REFUSED: dict[str, tuple[dict[str, Any], dict[str, torch.Tensor], str]] = {
    "another width": ({"transformer_layer_config": TWO | {"hidden_size": 128}}, {}, "hidden_size is 128; the target's is 64"),
    "another vocabulary": ({"transformer_layer_config": TWO | {"vocab_size": 320}}, {}, "vocab_size is 320; the target's is 512"),
    "a layer too many": ({"transformer_layer_config": TWO | {"num_hidden_layers": 3}}, {}, "layers.2.* is missing"),
    "a layer too few": (
        {"transformer_layer_config": TWO | {"num_hidden_layers": 1}},
        {},
        "layers.1.* is not part of a supported dflash head",
    ),
    "windows": ({"transformer_layer_config": TWO | SLIDING}, {}, "layer_types has 'sliding_attention'"),
    "windows that are off": (
        {"transformer_layer_config": TWO | SLIDING | {"use_sliding_window": False}},
        {},
        "layer_types has 'sliding_attention'",
    ),
    "drafts of the newest token": ({"sample_from_anchor": True}, {}, "sample_from_anchor is True; it must be False"),
    "a word for options": ({"dflash_config": "none"}, {}, "dflash_config is 'none'; it must be an object"),
    "no block": ({"block_size": None}, {}, r"block_size is None; it must be a whole number in \[2, 512\]"),
    "a block of one": ({"block_size": 1}, {}, "block_size is 1; it must be"),
    "half a block": ({"block_size": 2.5}, {}, "block_size is 2.5; it must be"),
    "no mask": ({"mask_token_id": None}, {}, r"mask_token_id is None; it must be a whole number in \[0, 511\]"),
    "a mask outside": ({"mask_token_id": 512}, {}, "mask_token_id is 512; it must be"),
    "no states": ({"aux_hidden_state_layer_ids": None}, {}, "aux_hidden_state_layer_ids is None; they must be numbers"),
    "an empty list of states": ({"aux_hidden_state_layer_ids": []}, {}, r"aux_hidden_state_layer_ids is \[\]; they must be"),
    "the last layer's": (
        {"aux_hidden_state_layer_ids": [0, 2]},
        {},
        r"aux_hidden_state_layer_ids is \[0, 2\]; they must be numbers that increase within the target's 2 layers",
    ),
    "three states": ({}, {"fc.weight": torch.ones(64, 192)}, r"fc.weight has shape \(64, 192\); it must be \(64, 128\)"),
    "no norm": ({}, {"hidden_norm.weight": NOTHING}, "hidden_norm.weight is missing"),
    "another repository's parts": (
        {},
        {"candidate_selector.hidden_projection.weight": torch.ones(8, 64)},
        "candidate_selector.hidden_projection.weight is not part of a supported dflash head",
    ),
    "not a number": ({}, {"norm.weight": torch.full((64,), torch.nan)}, "norm.weight has numbers that are not finite"),
    "no list of tokens": ({}, {"lm_head.weight": torch.ones(300, 64)}, "its lm_head has 300 tokens and d2t is missing"),
    "another target": ({"target_weights_fingerprint": "f00d"}, {}, "trained with the target weights 'f00d'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    changes, tensors, said = REFUSED[case]
    write_dflash(tmp_path, tensors, **changes)
    with pytest.raises(ConfigError, match=said) as refused:
        load(tmp_path)
    assert str(tmp_path) in str(refused.value)


def as_published(folder: Path, top: dict[str, Any], **options: Any) -> None:
    """Rewrites the config as the paper's repository has it: the layers' fields in it, options in `dflash_config`."""
    given = json.loads((folder / "config.json").read_text())
    fields = given["transformer_layer_config"] | {"architectures": ["DFlashDraftModel"], "num_target_layers": 2}
    own = {"mask_token_id": given["mask_token_id"], "target_layer_ids": [0, 1]}
    (folder / "config.json").write_text(json.dumps(fields | top | {"dflash_config": own | options}))


@pytest.mark.parametrize(("top", "options"), [({"block_size": 6}, {}), ({}, {"block_size": 6})])
def test_the_papers_own_config_is_read_alike(tmp_path: Path, top: dict[str, Any], options: dict[str, Any]) -> None:
    """It counts layers from the first one's output."""
    deep = replace(TARGET, layers=TARGET.layers * 4)
    for name in ("one", "other"):
        write_dflash(tmp_path / name, aux_hidden_state_layer_ids=[1, 2])
    as_published(tmp_path / "other", top, **options)
    one, other = load(tmp_path / "one", deep), load(tmp_path / "other", deep)
    assert one.format == other.format == "dflash"
    assert one.config == replace(other.config, layer=replace(other.config.layer, source=one.config.layer.source))
    assert (one.config.taps, one.config.block_size, one.config.mask_token_id) == ((1, 2), 6, 511)
    assert one.tensors.keys() == other.tensors.keys() == load_file(tmp_path / "one" / "model.safetensors").keys()


@pytest.mark.parametrize(
    ("top", "options", "said"),
    [
        ({"block_size": 6}, {"target_layer_ids": [1, 7]}, r"target_layer_ids is \[1, 7\]; they must be numbers"),
        ({"block_size": 6, "is_causal": True}, {}, "is_causal is True; it must be False"),
        ({"block_size": 6}, {"use_swa": True}, "use_swa is True; it must be False"),
        ({"block_size": 6, "final_logit_softcapping": 30.0}, {}, "final_logit_softcapping is 30.0; it must be 0"),
        ({"block_size": 6}, {"input_embedding_scale": 8.0}, "input_embedding_scale is 8.0; it must be 1"),
        ({}, {}, "block_size is None"),
    ],
)  # fmt: skip
def test_what_the_papers_config_may_not_say(
    tmp_path: Path, top: dict[str, Any], options: dict[str, Any], said: str
) -> None:
    write_dflash(tmp_path)
    as_published(tmp_path, top, **options)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path, replace(TARGET, layers=TARGET.layers * 4))
