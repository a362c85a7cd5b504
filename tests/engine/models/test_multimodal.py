"""The text model of a multimodal checkpoint, under the names of old and new checkpoints."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForImageTextToText,
    Gemma3Config,
    Gemma3TextConfig,
    Gemma4Config,
    Ministral3Config,
    Mistral3Config,
    MistralConfig,
    PixtralVisionConfig,
    PreTrainedConfig,
    Qwen3_5Config,
    SiglipVisionConfig,
)

from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.cpu.test_llama import check_logits
from tests.engine.feeding import Feeder, load_llama, load_modules
from tests.model_folder import change_config

VOCAB_SIZE = 64
TEXT: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 16,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "eos_token_id": 0,
    "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
VISION: dict[str, Any] = {
    "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28,
    "patch_size": 14,
}  # fmt: skip
IMAGE: dict[str, Any] = {"image_token_index": 3}
CONFIGS: dict[str, PreTrainedConfig] = {
    "gemma3": Gemma3Config(
        text_config=Gemma3TextConfig(**TEXT, sliding_window=20), vision_config=SiglipVisionConfig(**VISION),
        mm_tokens_per_image=4, boi_token_index=4, eoi_token_index=5, **IMAGE,
    ),
    "mistral3, tied": Mistral3Config(
        text_config=Ministral3Config(**TEXT, tie_word_embeddings=True), vision_config=PixtralVisionConfig(**VISION), **IMAGE
    ),
    "mistral3, untied": Mistral3Config(
        text_config=MistralConfig(**TEXT, sliding_window=None), vision_config=PixtralVisionConfig(**VISION),
        tie_word_embeddings=False, **IMAGE,
    ),
    "gemma4": Gemma4Config(
        text_config=TEXT | {"global_head_dim": 32, "sliding_window": 20, "hidden_size_per_layer_input": 16,
                            "vocab_size_per_layer_input": VOCAB_SIZE, "use_bidirectional_attention": "vision"},
        vision_config=VISION | {"num_key_value_heads": 2, "head_dim": 16}, audio_config=None,
    ),
    "qwen3_5": Qwen3_5Config(
        text_config=TEXT | {"num_hidden_layers": 4, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
                            "linear_key_head_dim": 32, "linear_value_head_dim": 32},
        vision_config={"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64},
    ),
}  # fmt: skip
LOADERS = {"gemma4": [load_modules], "qwen3_5": [load_modules]}
NEW, OLD = ("model.language_model.", "model.vision_tower.", "model.multi_modal_projector.", "lm_head."), (
    "language_model.model.", "vision_tower.", "multi_modal_projector.", "language_model.lm_head.",
)  # fmt: skip


def renamed(name: str, names: tuple[str, ...]) -> str:
    for forms in zip(NEW, OLD, names, strict=True):
        for form in forms[:2]:
            if name.startswith(form):
                return forms[2] + name.removeprefix(form)
    return name


@pytest.mark.parametrize("names", [OLD, NEW], ids=["old", "new"])
@pytest.mark.parametrize("name", CONFIGS)
def test_the_text_model_runs_as_in_the_whole(name: str, names: tuple[str, ...], tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = AutoModelForImageTextToText.from_config(
        CONFIGS[name], dtype=torch.float32, attn_implementation="eager"
    ).eval()
    whole.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    save_file(
        {renamed(each, names): tensor for each, tensor in tensors.items()}, tmp_path / "model.safetensors",
        metadata={"format": "pt"},
    )  # fmt: skip
    if "untied" in name:
        # As checkpoints have it, which say nothing of it.
        change_config(tmp_path, tie_word_embeddings=True)
    for file, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (tmp_path / file).write_bytes(data)
    tokens = torch.randint(6, VOCAB_SIZE, (50,), generator=torch.Generator().manual_seed(1)).tolist()
    for load in LOADERS.get(name, [load_llama, load_modules]):
        logits = Feeder(load(str(tmp_path)), block_size=16).feed_split(tokens, [50])
        check_logits(logits, whole, tokens)


def test_a_head_that_is_missing_is_told(tmp_path: Path) -> None:
    config = CONFIGS["mistral3, untied"]
    AutoModelForImageTextToText.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({name: each for name, each in load_file(file).items() if "lm_head" not in name}, file)
    for each, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (tmp_path / each).write_bytes(data)
    with pytest.raises(ConfigError, match=r"lm_head\.weight is missing"):
        load_llama(str(tmp_path))


def test_another_multimodal_model_is_refused(tmp_path: Path) -> None:
    CONFIGS["gemma3"].save_pretrained(tmp_path)
    change_config(tmp_path, model_type="paligemma")
    save_file({"language_model.model.norm.weight": torch.ones(4)}, tmp_path / "model.safetensors")
    for file, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (tmp_path / file).write_bytes(data)
    for implementation in ("own", "auto"):
        with pytest.raises(ConfigError, match="model type 'paligemma'"):
            load_model(str(tmp_path), torch.float32, implementation=implementation)
