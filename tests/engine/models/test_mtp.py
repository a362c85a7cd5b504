"""MTP heads of checkpoints are read, or refused by the name of what does not fit."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen3_5Config

from paceline.engine.models.mtp import LoadedMtp, load_mtp
from paceline.engine.models.weights import LoadedModel, load_model
from paceline.errors import ConfigError
from tests.mtp_models import MTP_MODELS, NAMES, config_of, prefix_of, write_mtp

NOTHING = torch.empty(0)
WIDTH, VOCAB_SIZE = 64, 128


def load(folder: Path) -> tuple[LoadedModel[Any], LoadedMtp]:
    loaded = load_model(str(folder), torch.float32, implementation="transformers")
    return loaded, load_mtp("it", loaded.config.source, loaded.mtp, loaded.tensors, loaded.weights_fingerprint)


@pytest.mark.parametrize("kind", MTP_MODELS)
def test_a_checkpoint_s_head_is_taken_apart_from_the_target(tmp_path: Path, kind: str) -> None:
    write_mtp(tmp_path, kind)
    loaded, head = load(tmp_path)
    assert not [name for name in loaded.tensors if name.startswith(prefix_of(kind))]
    assert {name.split(".")[0] for name in head.tensors} == {"fc", "embedding_norm", "hidden_norm", "norm", "layers"}
    # A copy of the target's embedding or head is not kept twice.
    assert head.source.num_hidden_layers == 1
    assert loaded.config.source.num_hidden_layers == config_of(kind).num_hidden_layers
    assert head.weights_fingerprint == loaded.weights_fingerprint


def test_the_head_s_weights_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    for number in range(2):
        write_mtp(
            tmp_path / str(number), "glm4_moe", {"model.layers.4.enorm.weight": torch.full((WIDTH,), 1.0 + number)}
        )
    one, other = (load(tmp_path / str(number))[0].weights_fingerprint for number in range(2))
    assert one != other


def test_an_embedding_and_a_head_of_its_own_are_kept(tmp_path: Path) -> None:
    own = torch.randn(VOCAB_SIZE, WIDTH, generator=torch.Generator().manual_seed(9))
    write_mtp(
        tmp_path,
        "glm4_moe",
        {"model.layers.4.embed_tokens.weight": own, "model.layers.4.shared_head.head.weight": own + 1},
    )
    _, head = load(tmp_path)
    assert torch.equal(head.tensors["embed_tokens.weight"], own)
    assert torch.equal(head.tensors["lm_head.weight"], own + 1)


def test_a_multimodal_checkpoint_has_its_head_beside_the_text_model(tmp_path: Path) -> None:
    """As Qwen publishes them."""
    write_mtp(tmp_path, "qwen3_5_text")
    _, alone = load(tmp_path)
    text, vision = config_of("qwen3_5_text").to_dict(), {"depth": 1, "hidden_size": 32, "out_hidden_size": WIDTH}
    Qwen3_5Config(text_config=text, vision_config=vision, tie_word_embeddings=True).save_pretrained(tmp_path)
    stored = load_file(tmp_path / "model.safetensors")
    named = {re.sub(r"^model\.", "model.language_model.", name): tensor for name, tensor in stored.items()}
    save_file(named, tmp_path / "model.safetensors")
    _, head = load(tmp_path)
    assert head.tensors.keys() == alone.tensors.keys()
    assert all(torch.equal(head.tensors[name], alone.tensors[name]) for name in head.tensors)


# What changes in the checkpoint's head, and what the error says.
REFUSED: dict[str, tuple[str, dict[str, torch.Tensor], str]] = {
    "no norm": ("qwen3_5_text", {"mtp.pre_fc_norm_hidden.weight": NOTHING}, "hidden_norm.weight is missing"),
    "no last norm": ("glm4_moe", {"model.layers.4.shared_head.norm.weight": NOTHING}, "norm.weight is missing"),
    "no fusion": ("deepseek_v3", {"model.layers.4.eh_proj.weight": NOTHING}, "fc.weight is missing"),
    "a narrow fusion": (
        "deepseek_v3",
        {"model.layers.4.eh_proj.weight": torch.ones(WIDTH, WIDTH)},
        r"fc.weight has shape \(64, 64\); it must be \(64, 128\)",
    ),
    "two layers, Qwen's": ("qwen3_5_text", {"mtp.layers.1.mlp.up_proj.weight": torch.ones(2)}, "of a second MTP layer"),
    "two layers": ("glm4_moe", {"model.layers.5.enorm.weight": torch.ones(WIDTH)}, "model.layers.5.enorm.weight is of a second"),
    "an unknown tensor": ("qwen3_5_text", {"mtp.gate.weight": torch.ones(2)}, "gate.weight is not part of a supported MTP head"),
    "not a number": (
        "qwen3_5_text",
        {"mtp.norm.weight": torch.full((WIDTH,), torch.nan)},
        "norm.weight has numbers that are not finite",
    ),
    "another vocabulary": (
        "glm4_moe",
        {"model.layers.4.embed_tokens.weight": torch.ones(7, WIDTH)},
        r"embed_tokens.weight has shape \(7, 64\); it must be \(128, 64\)",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_named(tmp_path: Path, case: str) -> None:
    kind, tensors, said = REFUSED[case]
    write_mtp(tmp_path, kind, tensors)
    with pytest.raises(ConfigError, match=said):
        load(tmp_path)


def test_layers_beyond_the_config_are_no_head(tmp_path: Path) -> None:
    """Without what an MTP head has besides its layer they are a mistake, which the target's own check names."""
    names = (*NAMES["glm4_moe"], "embed_tokens", "shared_head.head")
    write_mtp(tmp_path, "glm4_moe", {f"model.layers.4.{name}.weight": NOTHING for name in names})
    assert load_model(str(tmp_path), torch.float32, implementation="transformers").mtp == {}
