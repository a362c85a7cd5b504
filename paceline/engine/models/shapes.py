"""Shapes of a model's tensors, with Hugging Face's names: checks them, and fuses the weights of one product."""

from typing import Any

import torch

from paceline.engine.models.config import ModelConfig
from paceline.engine.models.gguf.tensors import FileTensor
from paceline.engine.models.masks import MASK_VECTORS
from paceline.errors import ConfigError

# By name: torch.Tensor, or FileTensor where a GGUF file is read in place.
Tensors = dict[str, Any]
# A linear's weights: a tensor, or parts that may have different formats, one below the other.
Weight = torch.Tensor | tuple[FileTensor, ...]


def fused(tensors: Tensors, prefix: str, *names: str) -> tuple[Weight, torch.Tensor | None]:
    """Takes these projections out of `tensors`, and joins their weights and their biases.

    Returns [sum of out_features, in_features] and [sum of out_features], or None if there are no biases. Parts in
    blocks beside some that are not become tensors like those.
    """
    parts = [tensors.pop(f"{prefix}{name}.weight") for name in names]
    biases = [tensors.pop(f"{prefix}{name}.bias", None) for name in names]
    bias = torch.cat([bias for bias in biases if isinstance(bias, torch.Tensor)]) if biases[0] is not None else None
    plain = [part for part in parts if isinstance(part, torch.Tensor)]
    if not plain:
        return tuple(parts), bias
    return torch.cat([as_tensor(part, plain[0].dtype) for part in parts]), bias


def as_tensor(weight: torch.Tensor | FileTensor, dtype: torch.dtype) -> torch.Tensor:
    """The weights as a tensor of the dtype."""
    return (torch.from_numpy(weight.dequantised()) if isinstance(weight, FileTensor) else weight).to(dtype)


def check_shapes(config: ModelConfig, tensors: Tensors) -> None:
    """Raises ConfigError, which names the tensor, if the weights do not match the config."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    expected = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        expected |= {
            f"model.layers.{i}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden),
                "self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, query),
                "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            }.items()
        }  # fmt: skip
    if extra := next((name for name in tensors if name.startswith(f"model.layers.{config.num_layers}.")), None):
        raise ConfigError(
            f"the weights do not match the config: {extra} is there, the config says {config.num_layers} layers"
        )
    if MASK_VECTORS in tensors:
        expected[MASK_VECTORS] = (len(tensors[MASK_VECTORS]), hidden)
    for name, shape in expected.items():
        if name not in tensors:
            raise ConfigError(f"the weights do not match the config: {name} is missing")
        if tuple(tensors[name].shape) != shape:
            found = tuple(tensors[name].shape)
            raise ConfigError(f"the weights do not match the config: {name} has shape {found}, the config says {shape}")
