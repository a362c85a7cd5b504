"""How much memory a model's keys and values take: the figures of Llama-3.2's shapes, worked out by hand. What a config may
say."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PhimoeConfig

from paceline.engine.cpu.paged_attention import CACHE_DTYPES, make_layout
from paceline.engine.models.model_config import ModelConfig, TextConfig
from paceline.errors import ConfigError

BFLOAT16_BYTES = 2
GIB = 2**30
SHAPES: dict[str, dict[str, Any]] = {
    "1B": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "head_dim": 64},
    "3B": {"hidden_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 24, "head_dim": 128},
}
SEQUENCES, LENGTH = 8, 4096


def llama(name: str) -> LlamaConfig:
    common = {"intermediate_size": 8192, "num_key_value_heads": 8, "vocab_size": 128_256, "tie_word_embeddings": True}
    return LlamaConfig(**common, **SHAPES[name])


def cache_bytes(name: str) -> int:
    """Of eight sequences of 4,096 tokens."""
    return SEQUENCES * LENGTH * token_bytes(name)


def token_bytes(name: str) -> int:
    config = ModelConfig.from_transformers(llama(name))
    return make_layout(config, config.num_layers, 1, CACHE_DTYPES["bfloat16"]).block_bytes


# Keys and values, of layers, of KV heads, of features, in bytes.
@pytest.mark.parametrize(("name", "expected"), [("1B", 2 * 16 * 8 * 64 * 2), ("3B", 2 * 28 * 8 * 128 * 2)])
def test_a_token_takes_keys_and_values_of_each_layer_and_kv_head(name: str, expected: int) -> None:
    assert expected in (32_768, 114_688)
    assert token_bytes(name) == expected


def test_eight_sequences_of_both_models_fit_16_gb() -> None:
    weights = {}
    for name in SHAPES:
        # Shapes alone.
        with torch.device("meta"):
            weights[name] = BFLOAT16_BYTES * AutoModelForCausalLM.from_config(llama(name)).num_parameters()
    assert weights["1B"] == pytest.approx(2.5e9, rel=0.02)
    assert weights["3B"] == pytest.approx(6.5e9, rel=0.02)
    assert (cache_bytes("1B"), cache_bytes("3B")) == (GIB, 3.5 * GIB)
    activations = 1.5 * GIB
    total = sum(weights.values()) + sum(map(cache_bytes, SHAPES)) + activations
    assert total == pytest.approx(15.0e9, rel=0.03)
    assert total < 16 * GIB


@pytest.mark.parametrize("name", ["silu", "swish"])
def test_the_kernels_activation_is_taken_by_both_its_names(name: str) -> None:
    ModelConfig.from_transformers(LlamaConfig(hidden_act=name))


def test_another_activation_is_refused() -> None:
    with pytest.raises(ConfigError, match="hidden_act is 'gelu'; it must be silu, swish, gelu_pytorch_tanh"):
        ModelConfig.from_transformers(LlamaConfig(hidden_act="gelu"))


@pytest.mark.parametrize("field", ["factor", "mscale"])
def test_longrope_keeps_to_the_original_length_if_anything_changes_there(field: str) -> None:
    rope: dict[str, Any] = {
        "rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 8, "long_factor": [1.0] * 8, "short_mscale": 1.2, "long_mscale": 1.2,
    }  # fmt: skip
    shape = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512}
    other = {f"long_{field}": [2.0] * 8 if field == "factor" else 1.5}
    longest = [
        TextConfig.from_transformers(PhimoeConfig(**shape, rope_parameters=each)).max_model_len
        for each in (rope, rope | other)
    ]
    assert longest == [512, 64]
