"""Contradictions between a folder's config and its tensors: what transformers would drop, invent or not tie."""

from collections.abc import Collection
from typing import Any

import torch

from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.shapes import Tensors
from paceline.errors import ConfigError

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def settle_head(source: Any, tensors: Tensors) -> None:
    """Unties a model whose files have another head than the embedding, as transformers does; drops a head that equals it."""
    head, embedding = tensors.get(HEAD), tensors.get(EMBEDDING)
    if not getattr(source, "tie_word_embeddings", False) or head is None or embedding is None:
        return
    if are_equal(head, embedding):
        del tensors[HEAD]
    else:
        source.tie_word_embeddings = False


def are_equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Returns whether two tensors have the same numbers, whatever their dtypes."""
    if one.dtype != other.dtype:
        one, other = one.double(), other.double()
    return torch.equal(one, other)


def require_declared_biases(source: Any, names: Collection[str]) -> None:
    """Raises ConfigError if layers have biases that the config does not declare, or lack those that it does.

    transformers would drop the former and invent the latter. Only for architectures that our own layers know.
    """
    declared = {
        f"model.layers.{i}.{projection}.bias": flag
        for flag, projections in ARCHITECTURES[source.model_type].biases.items()
        if not flag or getattr(source, flag, False)
        for i in range(source.num_hidden_layers)
        for projection in projections
    }
    found = {name for name in names if name.endswith("_proj.bias")}
    if missing := min(declared.keys() - found, default=None):
        flag = declared[missing]
        says = f"{flag} is true" if flag else f"a {source.model_type} model has it"
        raise ConfigError(f"the weights do not match the config: {missing} is missing, and {says}")
    if extra := min(found - declared.keys(), default=None):
        flags = ", ".join(filter(None, ARCHITECTURES[source.model_type].biases))
        says = f"the config does not declare it ({flags})" if flags else f"a {source.model_type} model does not have it"
        raise ConfigError(f"the weights do not match the config: {extra} is there, and {says}")
