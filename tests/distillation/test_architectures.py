"""Drafts of other architectures: what is trained is what the engine runs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    PreTrainedConfig,
    SmolLM3Config,
)

from paceline.distillation.draft import chosen_layers, make_backbone, require_trainable, save_draft
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.distillation.conftest import VOCAB
from tests.engine.feeding import Feeder, load_llama

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64, "tie_word_embeddings": True, "eos_token_id": 0,
    "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "gemma3": Gemma3TextConfig(**SHAPE, head_dim=16, sliding_window=8, sliding_window_pattern=3),
    "smollm3": SmolLM3Config(**SHAPE, no_rope_layer_interval=3),
    "granite": GraniteConfig(**SHAPE, embedding_multiplier=3.0, attention_multiplier=0.2, residual_multiplier=0.5),
}
MASKS = 2


def write_target(config: PreTrainedConfig, folder: Path) -> None:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    for file, data in dummy_tokenizer_files(VOCAB).items():
        (folder / file).write_bytes(data)


@pytest.mark.parametrize("name", CONFIGS)
@torch.inference_mode()
def test_a_draft_runs_as_it_was_trained(name: str, tmp_path: Path) -> None:
    """Kinds of layers go with the layers."""
    write_target(CONFIGS[name], tmp_path / "target")
    target = load_model(str(tmp_path / "target"), torch.float32)
    backbone = make_backbone(target.config.source, target.tensors, 3)
    save_draft(tmp_path / "draft", backbone, str(tmp_path / "target"), torch.arange(VOCAB))
    draft = load_model(str(tmp_path / "draft"), torch.float32)
    assert draft.config.layers == tuple(target.config.layers[layer] for layer in chosen_layers(3, 6))
    tokens = np.random.default_rng(0).integers(VOCAB, size=40).tolist()
    hidden = backbone(input_ids=torch.tensor([tokens])).last_hidden_state[0]
    logits = hidden @ target.tensors["model.embed_tokens.weight"].T * draft.config.scales.logit
    ours = Feeder(load_llama(str(tmp_path / "draft")), block_size=16).feed_split(tokens, [40])
    # Layers are kept as int8.
    torch.testing.assert_close(ours, logits, rtol=0.05, atol=0.05 * float(logits.abs().max()))


@pytest.mark.parametrize(("config", "num_masks", "reason"), [
    (Gemma2Config(**SHAPE, head_dim=16), 0, r"its final_logit_softcapping is 30\.0; the loss can't cap logits"),
    (CONFIGS["gemma3"], MASKS, "masks is 2; it must be 0, because init_from .* scales embeddings or has windows"),
    (CONFIGS["granite"], MASKS, "masks is 2; it must be 0"),
])  # fmt: skip
def test_what_training_does_not_compute_is_refused(
    config: PreTrainedConfig, num_masks: int, reason: str, tmp_path: Path
) -> None:
    write_target(config, tmp_path)
    with pytest.raises(ConfigError, match=reason):
        require_trainable(load_model(str(tmp_path), torch.float32), num_masks)
