"""Checks the shapes of a model's tensors, and fuses weights.

A draft may be trained to fill masks, from which one forward pass proposes several tokens (PARD, 2504.18583). Mask j has the
token id vocab_size + j, follows the last known token at distance j + 1, and its row proposes the token after it.
"""

from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.tensors import FileTensor, Parts, dequantized
from paceline.engine.models.model_config import ModelConfig, expected_shapes, needed_shapes
from paceline.errors import ConfigError

# [num_masks, hidden_size], in a draft that can fill masks.
MASK_VECTORS = "mask_vectors"


def num_masks(tensors: dict[str, torch.Tensor]) -> int:
    return len(tensors[MASK_VECTORS]) if MASK_VECTORS in tensors else 0


def with_masks(embedding: torch.Tensor, tensors: dict[str, torch.Tensor]) -> torch.Tensor:
    """Vectors of tokens and masks: [vocab_size + num_masks, hidden_size]. Takes the masks' out of `tensors`."""
    masks = tensors.pop(MASK_VECTORS, None)
    return embedding if masks is None else torch.cat([embedding, masks.to(embedding)])


# By name: torch.Tensor, or FileTensor if a GGUF file is read in place.
Tensors = dict[str, Any]
# A linear layer's weights: a tensor, or stacked parts that may have different formats.
Weight = torch.Tensor | tuple[FileTensor, ...]
# Tensors that only drafts have, and redundant ones: a tied head, and the frequencies in old files.
HEAD_IDS = "head_ids"
_FREE = (HEAD_IDS, MASK_VECTORS, "lm_head.weight")
_UNUSED = "rotary_emb.inv_freq"


def fused(tensors: Tensors, prefix: str, *names: str, order: Array | None = None) -> tuple[Weight, torch.Tensor | None]:
    """Pops and concatenates projections: [sum of out_features, in_features] and [sum of out_features] or None.

    Quantized parts become tensors if other parts are tensors. `order`: see `rope.rotary_order`.
    """
    parts = [tensors.pop(f"{prefix}{name}.weight") for name in names]
    biases = [tensors.pop(f"{prefix}{name}.bias", None) for name in names]
    bias = torch.cat([bias for bias in biases if isinstance(bias, torch.Tensor)]) if biases[0] is not None else None
    if order is not None:
        starts = np.cumsum([0, *(part.shape[0] for part in parts)])
        parts = [
            part[order[start:end] - start] for part, start, end in zip(parts, starts[:-1], starts[1:], strict=True)
        ]
        bias = None if bias is None else bias[order]
    plain = [part for part in parts if isinstance(part, torch.Tensor)]
    if not plain:
        return tuple(parts), bias
    return torch.cat([as_tensor(part, plain[0].dtype) for part in parts]), bias


def layout_of(weight: Weight) -> tuple[Any, ...]:
    """Returns each part's format and shape: weights of one layout are multiplied in the same way."""
    parts = weight if isinstance(weight, tuple) else (weight,)
    return tuple(
        (part.dtype if isinstance(part, torch.Tensor) else part.format.name, tuple(part.shape)) for part in parts
    )


def as_tensor(weight: torch.Tensor | FileTensor | Parts, dtype: torch.dtype) -> torch.Tensor:
    return (weight if isinstance(weight, torch.Tensor) else torch.from_numpy(dequantized(weight))).to(dtype)


def check_shapes(config: ModelConfig, tensors: Tensors) -> None:
    """Raises ConfigError, naming the tensor, if one is missing, unexpected, or has a wrong shape."""
    needed, expected = needed_shapes(config), expected_shapes(config)
    if extra := next((name for name in tensors if name.startswith(f"model.layers.{config.num_layers}.")), None):
        raise _mismatch(f"{extra} is there, the config says {config.num_layers} layers")
    for name in needed:
        if name not in tensors:
            raise _mismatch(f"{name} is missing")
    for names in _together(config):
        there = [name in tensors for name in names]
        if any(there) and not all(there):
            raise _mismatch(f"{names[there.index(True)]} is there, {names[there.index(False)]} is missing")
    for name, tensor in tensors.items():
        shape = expected.get(name)
        if shape is not None and tuple(tensor.shape) != shape:
            raise _mismatch(f"{name} has shape {tuple(tensor.shape)}, the config says {shape}")
        if shape is None and name not in _FREE and not name.endswith(_UNUSED):
            raise _mismatch(f"{name} is not part of a supported {config.source.model_type} model")
    _check_free(config, tensors)


def _together(config: ModelConfig) -> list[list[str]]:
    return [
        [f"model.layers.{i}.{name}.bias" for name in names]
        for i in range(config.num_layers)
        for names in (config.architecture.qkv, config.architecture.gate_up)
    ]


def _check_free(config: ModelConfig, tensors: Tensors) -> None:
    masks, ids = tensors.get(MASK_VECTORS), tensors.get(HEAD_IDS)
    if masks is not None and tuple(masks.shape[1:]) != (config.hidden_size,):
        raise _mismatch(f"{MASK_VECTORS} has shape {tuple(masks.shape)}, the config says [any, {config.hidden_size}]")
    if ids is not None and (
        ids.ndim != 1 or not len(ids) or not 0 <= int(ids.min()) <= int(ids.max()) < config.vocab_size
    ):
        raise _mismatch(f"{HEAD_IDS} must be a list of tokens in [0, {config.vocab_size})")


def _mismatch(what: str) -> ConfigError:
    return ConfigError(f"the weights do not match the config: {what}")
