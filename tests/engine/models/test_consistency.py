"""A config that contradicts its folder's tensors: what the files have is used, or refused by name, by both implementations."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.cpu.test_architectures import SHAPE, TOKENS, write_random
from tests.engine.cpu.test_llama import oracle_logits, random_model, relative_error
from tests.engine.feeding import Feeder, load_llama, load_modules
from tests.model_folder import change_config, write_model

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
LOADERS = {"own": load_llama, "transformers": load_modules}


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> None:
    """None takes a tensor away."""
    file = folder / "model.safetensors"
    changed = load_file(file) | changes
    save_file({name: tensor for name, tensor in changed.items() if tensor is not None}, file)


@pytest.mark.parametrize("kind", ["llama", "qwen3", "gemma2"])
@pytest.mark.parametrize("implementation", LOADERS)
def test_a_head_beside_tied_embeddings_is_used(tmp_path: Path, kind: str, implementation: str) -> None:
    config = AutoConfig.for_model(kind, **SHAPE, tie_word_embeddings=False)
    write_random(config, tmp_path)
    change_config(tmp_path, tie_word_embeddings=True)
    logits = Feeder(LOADERS[implementation](str(tmp_path)), block_size=16).feed_split(TOKENS[:40], [40])
    # The oracle knows no tying: it was built untied.
    assert relative_error(logits, oracle_logits(random_model(config), TOKENS[:40])) < 1e-5


@pytest.mark.parametrize("implementation", LOADERS)
def test_a_copy_of_tied_embeddings_is_no_head_of_its_own(tmp_path: Path, implementation: str) -> None:
    config = AutoConfig.for_model("llama", **SHAPE, tie_word_embeddings=True)
    write_random(config, tmp_path)
    change_tensors(tmp_path, {HEAD: load_file(tmp_path / "model.safetensors")[EMBEDDING].clone()})
    loaded = load_model(str(tmp_path), torch.float32, implementation=implementation)
    assert HEAD not in loaded.tensors
    assert loaded.config.source.tie_word_embeddings
    logits = Feeder(LOADERS[implementation](str(tmp_path)), block_size=16).feed_split(TOKENS[:40], [40])
    assert relative_error(logits, oracle_logits(random_model(config), TOKENS[:40])) < 1e-5


Q_BIAS, O_BIAS = (f"model.layers.1.self_attn.{name}_proj.bias" for name in "qo")
UP_BIAS = "model.layers.0.mlp.up_proj.bias"
# A kind, its fields, what is added or (None) taken away, and what the error says.
BIASES: dict[str, tuple[str, dict[str, Any], dict[str, torch.Tensor | None], str]] = {
    "declared and missing": (
        "llama", {"attention_bias": True}, {O_BIAS: None}, f"{O_BIAS} is missing, and attention_bias is true",
    ),
    "of the MLP, declared and missing": (
        "smollm3", {"mlp_bias": True}, {UP_BIAS: None}, f"{UP_BIAS} is missing, and mlp_bias is true",
    ),
    "always there and missing": ("qwen2", {}, {Q_BIAS: None}, f"{Q_BIAS} is missing, and a qwen2 model has it"),
    "not declared": (
        "qwen3", {}, {O_BIAS: torch.ones(64)}, f"{O_BIAS} is there, and the config does not declare it (attention_bias)",
    ),
    "not declared, of the output": (
        "qwen2", {}, {O_BIAS: torch.ones(64)}, f"{O_BIAS} is there, and a qwen2 model does not have it",
    ),
    "never there": ("mistral", {"attention_bias": True}, {O_BIAS: torch.ones(64)}, "and a mistral model does not have it"),
}  # fmt: skip


@pytest.mark.parametrize("name", BIASES)
def test_biases_that_the_config_contradicts_are_refused(tmp_path: Path, name: str) -> None:
    kind, fields, changes, reason = BIASES[name]
    write_random(AutoConfig.for_model(kind, **SHAPE, **fields), tmp_path)
    change_tensors(tmp_path, changes)
    for load in LOADERS.values():
        with pytest.raises(ConfigError) as caught:
            load(str(tmp_path))
        assert reason in str(caught.value)


def test_files_that_have_one_tensor_twice_must_agree(tmp_path: Path) -> None:
    write_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file({EMBEDDING: tensors[EMBEDDING]}, tmp_path / "another.safetensors")
    assert torch.equal(load_model(str(tmp_path), torch.float32).tensors[EMBEDDING], tensors[EMBEDDING])
    save_file({EMBEDDING: tensors[EMBEDDING] + 1}, tmp_path / "another.safetensors")
    with pytest.raises(ConfigError, match=f"model.safetensors has another '{EMBEDDING}' than a file before it"):
        load_model(str(tmp_path), torch.float32)
