"""Builds a model of transformers around the engine's matrices."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from transformers.utils import logging

from paceline.engine.models.gguf.tensors import FileTensor, Parts
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.shapes import HEAD_IDS, MASK_VECTORS, Tensors, Weight
from paceline.engine.models.supported_modules import causal_class
from paceline.engine.modules import experts, recurrent_interface
from paceline.engine.modules.matrices import Matrix, MatrixWeight
from paceline.errors import ConfigError

# `make(weight, bias, is_looked_up)`: weight [out_features, in_features], bias [out_features] or None.
MakeMatrix = Callable[[Weight, torch.Tensor | None, bool], Matrix]


def build_modules(config: TextConfig, tensors: Tensors, dtype: torch.dtype, make: MakeMatrix) -> Any:
    """Returns the model, which computes products and attention with the engine. Takes the tensors out of `tensors`.

    Raises ConfigError if they do not match the config, or the engine can't run the model.
    """
    return _build(causal_class(config.source), config.source, tensors, dtype, make)


def build_decoder(source: Any, tensors: Tensors, dtype: torch.dtype, make: MakeMatrix) -> Any:
    """Returns the decoder of a transformers config without its head, and without an embedding: it takes rows in its place.

    The tensors are named as in the decoder alone, such as `layers.0.mlp.down_proj.weight`. Else as `build_modules`.
    """
    from transformers import AutoModel

    embedding = torch.empty(1, dtype=dtype).expand(source.vocab_size, source.hidden_size)
    tensors["embed_tokens.weight"] = embedding
    decoder = _build(AutoModel._model_mapping[type(source)], source, tensors, dtype, make)
    decoder.set_input_embeddings(None)
    return decoder


def norm_like(decoder: Any, weight: torch.Tensor) -> nn.Module:
    """Returns a norm as the decoder's last one: how it computes with its weights differs from model to model."""
    if not isinstance(norm := getattr(decoder, "norm", None), nn.Module):
        raise ConfigError(f"{type(decoder).__name__} has no final norm")
    made = copy.deepcopy(norm)
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


def _build(model_class: Any, source: Any, tensors: Tensors, dtype: torch.dtype, make: MakeMatrix) -> Any:
    if drafts := sorted({HEAD_IDS, MASK_VECTORS} & tensors.keys()):
        raise ConfigError(f"a distilled draft ({drafts[0]}) runs with our own layers only: `--implementation own`")
    files = {name: tensors.pop(name) for name in list(tensors) if not isinstance(tensors[name], torch.Tensor)}
    files = {name: (found,) if isinstance(found, FileTensor) else found for name, found in files.items()}
    stand_ins = {name: _stand_in(parts, dtype) for name, parts in files.items()}
    model = _load(model_class, source, tensors | stand_ins, dtype)
    tensors.clear()
    if model._can_set_experts_implementation():
        model.set_experts_implementation(experts.NAME)
    _use_matrices(model, files, make)
    recurrent_interface.use_mixers(model)
    return model.eval()


def _load(model_class: Any, source: Any, tensors: Tensors, dtype: torch.dtype) -> Any:
    """Builds the model on no device, then gives it the tensors: no numbers are made or copied."""
    # It would report in many lines what is an error here.
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        model, found = model_class.from_pretrained(
            None, config=source, state_dict=tensors, dtype=dtype, output_loading_info=True
        )
    except Exception as error:  # a model's code may raise anything, e.g. an assertion about its config
        raise ConfigError(f"the weights do not match the config: {error or type(error).__name__}") from error
    finally:
        logging.set_verbosity(verbosity)
    for what in ("missing", "unexpected", "mismatched"):
        if keys := found[f"{what}_keys"]:
            raise ConfigError(f"the weights do not match the config: {sorted(map(str, keys))[0]} is {what}")
    return model


def _stand_in(parts: Parts, dtype: torch.dtype) -> torch.Tensor:
    """Returns a tensor of the joined shape that takes no memory."""
    *stack, _, in_features = parts[0].shape
    shape = *stack, sum(part.shape[-2] for part in parts), in_features
    return torch.empty(1, dtype=dtype).expand(shape)


def _use_matrices(model: Any, files: dict[str, Parts], make: MakeMatrix) -> None:
    """`files`: the parameters that are read from a file in place."""
    for name, module in list(model.named_modules()):
        if experts.are_experts(module):
            experts.use_matrices(
                module, {key: files[each] for key in module._parameters if (each := f"{name}.{key}") in files}, make
            )
    owners: dict[nn.Parameter, list[tuple[str, nn.Module]]] = {}
    for name, module in model.named_modules():
        if (weight := module._parameters.get("weight")) is not None and weight.ndim == 2:
            owners.setdefault(weight, []).append((f"{name}.weight", module))
    while owners:
        weight, places = owners.popitem()
        parts = next((files[name] for name, _ in places if name in files), None)
        multiplying = [module for _, module in places if not isinstance(module, nn.Embedding)]
        if multiplying or parts:
            stand_in = _weight(weight, parts, multiplying, len(multiplying) < len(places), make)
            for _, module in places:
                del module._parameters["weight"]
                module.weight = stand_in


def _weight(
    weight: nn.Parameter, parts: Parts | None, modules: list[nn.Module], is_looked_up: bool, make: MakeMatrix
) -> MatrixWeight:
    """`modules`: those that multiply with it."""
    dense, bias = weight.detach(), modules[0]._parameters.get("bias") if modules else None

    @cache
    def in_float32() -> MatrixWeight:
        wide = dense.float()
        return MatrixWeight.of(make(wide, None, False), wide, None)

    # Only routers, which are small, multiply in float32: theirs stay.
    may_widen = parts is None and not any(isinstance(module, nn.Linear) for module in modules)
    matrix = make(parts or dense, None if bias is None else bias.detach(), is_looked_up)
    return MatrixWeight.of(matrix, dense, bias, in_float32 if may_widen else None)
