"""Builds a model of transformers around the engine's matrices."""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn

from paceline.engine.models.config import TextConfig
from paceline.engine.models.modules import causal_class
from paceline.engine.models.shapes import HEAD_IDS, MASK_VECTORS, Tensors
from paceline.engine.modules import attention, experts, recurrent
from paceline.engine.modules.matrices import Matrix, MatrixWeight
from paceline.errors import ConfigError

# `make(weight, bias, is_looked_up)`: weight [out_features, in_features], bias [out_features] or None.
MakeMatrix = Callable[[torch.Tensor, torch.Tensor | None, bool], Matrix]


def build_modules(config: TextConfig, tensors: Tensors, dtype: torch.dtype, make: MakeMatrix) -> Any:
    """Returns the model, which computes products and attention with the engine. Takes the tensors out of `tensors`.

    Raises ConfigError if they do not match the config, or the engine can't run the model.
    """
    if drafts := sorted({HEAD_IDS, MASK_VECTORS} & tensors.keys()):
        raise ConfigError(f"a distilled draft ({drafts[0]}) runs with our own layers only: `--implementation own`")
    model = _load(config, tensors, dtype)
    model.set_attn_implementation(attention.NAME)
    if model._can_set_experts_implementation():
        model.set_experts_implementation(experts.NAME)
    recurrent.use_mixers(model)
    _use_matrices(model, make)
    return model.eval()


def _load(config: TextConfig, tensors: Tensors, dtype: torch.dtype) -> Any:
    """Builds the model on no device, then gives it the tensors: no numbers are made or copied."""
    try:
        model, found = causal_class(config.source).from_pretrained(
            None, config=config.source, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    except (RuntimeError, ValueError) as error:
        raise ConfigError(f"the weights do not match the config: {error}") from error
    tensors.clear()
    for what in ("missing", "unexpected", "mismatched"):
        if keys := found[f"{what}_keys"]:
            raise ConfigError(f"the weights do not match the config: {sorted(map(str, keys))[0]} is {what}")
    return model


def _use_matrices(model: Any, make: MakeMatrix) -> None:
    owners: dict[nn.Parameter, list[nn.Module]] = {}
    for module in list(model.modules()):
        if experts.are_experts(module):
            experts.use_matrices(module, make)
        elif isinstance(weight := module._parameters.get("weight"), nn.Parameter) and weight.ndim == 2:
            owners.setdefault(weight, []).append(module)
    while owners:
        weight, modules = owners.popitem()
        multiplying = [module for module in modules if not isinstance(module, nn.Embedding)]
        if multiplying:
            # Tied to the embedding, if there are several.
            matrix = _weight(weight, multiplying[0], make, is_looked_up=len(modules) > 1)
            for module in modules:
                del module._parameters["weight"]
                module.weight = matrix


def _weight(weight: nn.Parameter, module: nn.Module, make: MakeMatrix, is_looked_up: bool) -> MatrixWeight:
    dense, bias = weight.detach(), module._parameters.get("bias")

    @cache
    def in_float32() -> MatrixWeight:
        wide = dense.float()
        return MatrixWeight.of(make(wide, None, False), wide, None)

    # Only routers, which are small, multiply in float32: theirs stay.
    widen = None if isinstance(module, nn.Linear) else in_float32
    return MatrixWeight.of(make(dense, None if bias is None else bias.detach(), is_looked_up), dense, bias, widen)
