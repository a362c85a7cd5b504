"""What all formats of draft heads have in common, and the checks of a head against its target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.engine.models.model_config import ModelConfig, needed_shapes
from paceline.engine.models.shapes import Tensors
from paceline.engine.models.target_shape import TargetShape
from paceline.errors import ConfigError

# Of the target's weights that a head was trained with, if its config says so.
TARGET_KEY = "target_weights_fingerprint"


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    layer: ModelConfig
    # Numbers of the target's layers after which the head reads the hidden state, increasing.
    taps: tuple[int, ...]


Config = TypeVar("Config", bound=DraftHeadConfig, covariant=True)


@dataclass(frozen=True, slots=True)
class LoadedDraftHead(Generic[Config]):
    name: str
    # See `HeadFormat.name`.
    format: str
    config: Config
    tensors: Tensors
    # The tokens that it drafts, by the index of their logit: [head_size] int64.
    ids: NDArray[np.int64]
    weights_fingerprint: str


Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class HeadFormat:
    # As `speculators_model_type` has it.
    name: str
    # Whether a config without that field is one of the papers' repositories, which have the layer's fields in the config
    # itself.
    is_original: Callable[[Mapping[str, Any]], bool]
    # Reads the config, the fields of its layers, and what they say of this target.
    read: Callable[[Mapping[str, Any], Mapping[str, Any], TargetShape], Any]
    # The tensors that a head of this config must have, and those that it may have, by name. Of the config, the target, and the
    # number of tokens that the head drafts.
    shapes: Callable[[Any, TargetShape, int], tuple[Shapes, Shapes]]
    # What replaces parts of the tensors' names.
    renamed: Mapping[str, str]

    def name_of(self, tensor: str) -> str:
        for old, new in self.renamed.items():
            tensor = tensor.replace(old, new)
        return tensor


def read_layers(fields: Mapping[str, Any], target: TargetShape) -> ModelConfig:
    # Here, because transformers then reads the sources of all its models.
    from transformers import AutoConfig

    model_type = fields.get("model_type")
    try:
        source = AutoConfig.for_model(**fields)
    except Exception as error:  # transformers raises many types for a bad config
        reason = str(error).splitlines()[0]
        raise ConfigError(f"its layer, of model_type {model_type!r}, has no usable config: {reason}") from error
    layer = ModelConfig.from_transformers(source)
    if layer.hidden_size != target.hidden_size:
        raise ConfigError(f"hidden_size is {layer.hidden_size}; the target's is {target.hidden_size}")
    return layer


def read_one_layer(fields: Mapping[str, Any], target: TargetShape) -> ModelConfig:
    layer = read_layers(fields, target)
    if layer.num_layers != 1:
        raise ConfigError(f"num_hidden_layers is {layer.num_layers}; a head has 1")
    if "sliding_attention" in (fields.get("layer_types") or ()):
        # Also of a kind of layer that has no window elsewhere.
        layer = replace(layer, layers=(replace(layer.layers[0], window=fields.get("sliding_window") or 0),))
    return layer


def require_vocabulary(layer: ModelConfig, target: TargetShape) -> None:
    if layer.vocab_size != target.vocab_size:
        raise ConfigError(f"vocab_size is {layer.vocab_size}; the target's is {target.vocab_size}")


def read_taps(taps: Any, field: str, most: int, target: TargetShape) -> tuple[int, ...]:
    """Reads what `taps` says of `field`: numbers of the target's layers, up to `most`."""
    are_numbers = isinstance(taps, list) and bool(taps) and all(type(each) is int for each in taps)
    if not are_numbers or sorted(set(taps)) != taps or not 0 <= taps[0] <= taps[-1] <= most:
        raise ConfigError(
            f"{field} is {taps}; they must be numbers that increase within the target's {target.num_layers} layers"
        )
    return tuple(taps)


def layer_shapes(layer: ModelConfig, index: int) -> Shapes:
    """Returns what a layer must have, biases included, by its name in a head: `layers.0.mlp.down_proj.weight`."""
    prefix = f"model.layers.{index}."
    shapes = {
        name.removeprefix("model."): shape for name, shape in needed_shapes(layer).items() if name.startswith(prefix)
    }
    for flag, names in layer.architecture.biases.items():
        if not flag or getattr(layer.source, flag, False):
            shapes |= {f"layers.{index}.{name}.bias": shapes[f"layers.{index}.{name}.weight"][:1] for name in names}
    return shapes


def require_target(given: Mapping[str, Any], fingerprint: str) -> None:
    named = given.get(TARGET_KEY)
    if named not in (None, fingerprint):
        raise ConfigError(f"it was trained with the target weights {named!r}; these are {fingerprint!r}")


def take_ids(tensors: Tensors, given_size: int, target: TargetShape) -> NDArray[np.int64]:
    """Takes the tokens that the head drafts out of `tensors`: `d2t` has each token's id, less its index.

    given_size: the number of tokens, if the head has no output matrix of its own.
    """
    offsets, is_drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if is_drafted is not None and len(is_drafted) != target.vocab_size:
        raise ConfigError(f"t2d knows {len(is_drafted)} tokens; the target has {target.vocab_size}")
    size = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else given_size
    if offsets is None:
        if size != target.vocab_size:
            raise ConfigError(f"its lm_head has {size} tokens and d2t is missing; the target has {target.vocab_size}")
        return np.arange(target.vocab_size)
    ids = offsets.numpy().astype(np.int64) + np.arange(len(offsets))
    if len(ids) != size or ids.min() < 0 or ids.max() >= target.vocab_size or len(set(ids.tolist())) != len(ids):
        raise ConfigError(f"d2t must name {size} different tokens in [0, {target.vocab_size})")
    if is_drafted is not None and not np.array_equal(np.sort(ids), np.flatnonzero(is_drafted.numpy())):
        raise ConfigError("d2t and t2d name different tokens")
    return ids


def check_tensors(tensors: Tensors, expected: Shapes, optional: Shapes, format_name: str) -> None:
    for name, shape in (expected | optional).items():
        if name not in tensors and name in expected:
            raise ConfigError(f"{name} is missing")
        if name in tensors and tuple(tensors[name].shape) != shape:
            raise ConfigError(f"{name} has shape {tuple(tensors[name].shape)}; it must be {shape}")
        if name in tensors and not torch.isfinite(tensors[name]).all():
            raise ConfigError(f"{name} has numbers that are not finite")
    if unknown := next((name for name in tensors if name not in expected | optional), None):
        raise ConfigError(f"{unknown} is not part of a supported {format_name} head")
