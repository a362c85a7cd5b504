"""Dummy models: random weights in published shapes."""

import json
import zlib
from typing import Any

import torch
from transformers import PreTrainedConfig

from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.shapes import MASK_VECTORS
from paceline.errors import ConfigError

_LLAMA3_ROPE: dict[str, Any] = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
}  # fmt: skip
_LLAMA_32: dict[str, Any] = {
    "vocab_size": 128256, "max_position_embeddings": 131072, "tie_word_embeddings": True,
    "rope_parameters": _LLAMA3_ROPE, "eos_token_id": [128001, 128008, 128009],
}  # fmt: skip
_TINY: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "tie_word_embeddings": True, "max_position_embeddings": 512, "eos_token_id": 0,
}  # fmt: skip
# A few hundred tokens are far beyond the original length; Llama-3.2 has 8,192.
_TINY_LLAMA_32: dict[str, Any] = _TINY | {
    "vocab_size": 32, "max_position_embeddings": 1024,
    "rope_parameters": _LLAMA3_ROPE | {"original_max_position_embeddings": 64},
}  # fmt: skip
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA_32 | {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64,
    },
    "llama-3.2-3b": _LLAMA_32 | {
        "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28, "num_attention_heads": 24,
        "num_key_value_heads": 8, "head_dim": 128,
    },
    "smollm2-135m": {
        "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30, "num_attention_heads": 9,
        "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
        "max_position_embeddings": 8192, "eos_token_id": 2,
    },
    # Two models with 32 token ids, whose distributions differ but overlap, and one with a larger vocabulary for text.
    "tiny": _TINY | {"vocab_size": 512},
    "tiny-32-a": _TINY | {"vocab_size": 32},
    "tiny-32-b": _TINY | {"vocab_size": 32, "num_hidden_layers": 1},
    # Heads, their sharing and the rotary scaling of Llama-3.2 1B and 3B in models as small.
    "tiny-llama-3.2-1b": _TINY_LLAMA_32 | {"num_attention_heads": 8, "head_dim": 64},
    "tiny-llama-3.2-3b": _TINY_LLAMA_32 | {"hidden_size": 96, "num_attention_heads": 6, "head_dim": 128},
}  # fmt: skip
# Suffix of a shape's name for the same model with NUM_MASKS mask vectors (see `shapes`).
MASKS_SUFFIX, NUM_MASKS = "-masks", 4
# Standard deviation of a tiny model's weights. A smaller one would make its distribution nearly uniform.
_TINY_STD = 0.25


def dummy_config(name: str) -> PreTrainedConfig:
    """Returns a published shape's config. Raises ConfigError for an unknown name."""
    shape = name.removesuffix(MASKS_SUFFIX)
    if shape not in SHAPES:
        raise ConfigError(
            f"model 'dummy:{name}' is not known; known: {', '.join('dummy:' + shape for shape in SHAPES)}, "
            f"each also with {MASKS_SUFFIX}"
        )
    # Here, because it imports torch's compiler, which a server of another model does not need.
    from transformers import LlamaConfig

    return LlamaConfig(**SHAPES[shape])


def make_dummy(name: str, dtype: torch.dtype, device: str = "cpu") -> tuple[ModelConfig, dict[str, torch.Tensor]]:
    """Returns config and random tensors, equal in every call on one kind of `device`."""
    config = ModelConfig.from_transformers(dummy_config(name))
    generator = torch.Generator(device).manual_seed(zlib.crc32(name.removesuffix(MASKS_SUFFIX).encode()))
    std = _TINY_STD if config.hidden_size < 128 else 0.02
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device).mul_(std).to(dtype)

    tensors = {
        "model.embed_tokens.weight": random(config.vocab_size, hidden),
        "model.norm.weight": torch.ones(hidden, dtype=dtype, device=device),
    }
    for i in range(config.num_layers):
        prefix = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}{norm}.weight"] = torch.ones(hidden, dtype=dtype, device=device)
        for projection, rows, columns in (
            ("self_attn.q_proj", query, hidden), ("self_attn.k_proj", key, hidden), ("self_attn.v_proj", key, hidden),
            ("self_attn.o_proj", hidden, query), ("mlp.gate_proj", inner, hidden), ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):  # fmt: skip
            tensors[f"{prefix}{projection}.weight"] = random(rows, columns)
    if name.endswith(MASKS_SUFFIX):
        tensors[MASK_VECTORS] = random(NUM_MASKS, hidden)
    return config, tensors


def dummy_tokenizer_files(vocab_size: int) -> dict[str, bytes]:
    """Builds a tokenizer whose tokens are the words "t0", "t1" and so on, so that any ids are a text."""
    vocabulary = {f"t{i}": i for i in range(vocab_size)}
    tokenizer: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "t0"},
    }  # fmt: skip
    template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template}
    return {"tokenizer.json": json.dumps(tokenizer).encode(), "tokenizer_config.json": json.dumps(config).encode()}
