"""Weights that are not the config's model are refused: kernels do not check bounds, and what is left out is missed."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

from paceline.engine.models.dummy import SHAPES, make_dummy
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.shapes import Tensors, check_shapes
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError

HIDDEN, QUERY, KEY, HEAD_DIM, VOCAB = 48, 96, 32, 16, 77
SHAPE: dict[str, Any] = {
    "hidden_size": HIDDEN, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": HEAD_DIM, "vocab_size": VOCAB,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama untied": LlamaConfig(**SHAPE),
    "llama biased": LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "mistral": MistralConfig(**SHAPE),
    "qwen2": Qwen2Config(**{key: value for key, value in SHAPE.items() if key != "head_dim"}),
    "qwen3": Qwen3Config(**SHAPE),
    "qwen3 biased": Qwen3Config(**SHAPE, attention_bias=True),
}
LAYER = "model.layers.1."
Q_BIAS, K_BIAS, V_BIAS = (f"{LAYER}self_attn.{name}_proj.bias" for name in "qkv")
Q_NORM, K_NORM = (f"{LAYER}self_attn.{name}_norm.weight" for name in "qk")


def model(name: str) -> tuple[ModelConfig, Tensors]:
    """Config and tensors as transformers has them."""
    with torch.device("meta"):  # shapes alone
        tensors = AutoModelForCausalLM.from_config(CONFIGS[name]).state_dict()
    return ModelConfig.from_transformers(CONFIGS[name]), tensors


@pytest.mark.parametrize("name", CONFIGS)
def test_what_transformers_saves_is_taken(name: str) -> None:
    check_shapes(*model(name))


@pytest.mark.parametrize("name", [*(name for name in SHAPES if "tiny" in name), "tiny-masks"])
def test_dummies_are_taken(name: str) -> None:
    check_shapes(*make_dummy(name, torch.float32))


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2-135m-draft"])
def test_what_comes_with_us_is_taken(name: str) -> None:
    loaded = load_model(name, torch.bfloat16, in_place=True)
    check_shapes(loaded.config, loaded.tensors)


def test_what_changes_nothing_is_taken() -> None:
    config, tensors = model("llama")
    assert config.tied_embeddings
    check_shapes(config, tensors | {
        "lm_head.weight": torch.empty(VOCAB, HIDDEN), f"{LAYER}self_attn.rotary_emb.inv_freq": torch.empty(8),
        "model.rotary_emb.inv_freq": torch.empty(8),
    })  # fmt: skip


# A model, what is added to it or (None) taken away, and what the error says.
FAULTS: dict[str, tuple[str, dict[str, torch.Tensor | None], str]] = {
    "no bias of queries": ("qwen2", {Q_BIAS: None}, f"{K_BIAS} is there, {Q_BIAS} is missing"),
    "a bias of queries alone": ("llama", {Q_BIAS: torch.ones(QUERY)}, f"{Q_BIAS} is there, {K_BIAS} is missing"),
    "no bias of values": ("qwen2", {V_BIAS: None}, f"{Q_BIAS} is there, {V_BIAS} is missing"),
    "a short bias": ("llama biased", {K_BIAS: torch.ones(KEY - 1)}, f"{K_BIAS} has shape (31,), the config says (32,)"),
    "a short bias of the output": (
        "llama", {f"{LAYER}self_attn.o_proj.bias": torch.ones(3)}, "o_proj.bias has shape (3,), the config says (48,)",
    ),
    "a bias of the gate alone": (
        "llama", {f"{LAYER}mlp.gate_proj.bias": torch.ones(80)}, f"{LAYER}mlp.up_proj.bias is missing",
    ),
    "no norm of queries": ("qwen3", {Q_NORM: None}, f"{Q_NORM} is missing"),
    "a short norm of keys": ("qwen3", {K_NORM: torch.ones(8)}, f"{K_NORM} has shape (8,), the config says (16,)"),
    "a norm of queries in a llama": (
        "llama", {Q_NORM: torch.ones(HEAD_DIM)}, f"{Q_NORM} is not part of a supported llama model",
    ),
    "scales of blocks": (
        "qwen3", {f"{LAYER}mlp.up_proj.weight_scale_inv": torch.ones(1, 1)}, "weight_scale_inv is not part of a supported qwen3 model",
    ),
    "an adapter": ("llama", {f"{LAYER}mlp.up_proj.lora_A.weight": torch.ones(4, HIDDEN)}, "lora_A.weight is not part of"),
    "masks of another width": ("llama", {"mask_vectors": torch.ones(4, 47)}, "mask_vectors has shape (4, 47)"),
    "a token outside": ("llama", {"head_ids": torch.tensor([0, VOCAB])}, "head_ids must be a list of tokens in [0, 77)"),
    "no token": ("llama", {"head_ids": torch.empty(0, dtype=torch.int32)}, "head_ids must be a list of tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_other_weights_are_refused_by_name(name: str) -> None:
    of, changes, reason = FAULTS[name]
    config, tensors = model(of)
    changed = {key: tensor for key, tensor in (tensors | changes).items() if tensor is not None}
    with pytest.raises(ConfigError) as caught:
        check_shapes(config, changed)
    assert str(caught.value).startswith("the weights do not match the config: ")
    assert reason in str(caught.value)
