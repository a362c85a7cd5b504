"""Draft heads: a decoder layer that drafts from a target's hidden states, in a folder of its own.

EAGLE-3 (2503.01840) as `speculators` writes it, and as the papers' repositories do. Position t of the head reads the target's
hidden states at t - 1, of a low, a middle and a high layer, and the token at t:

    hidden = fc([states after each of `taps`])     or the head's own output at t - 1, behind a drafted token
    row = [input_layernorm(embedding(token)), hidden_norm(hidden)]
    x = hidden + attention(row), then x + mlp(norm(x)), as in any layer
    logits = lm_head(norm(x)), of `ids` alone
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.catalog.known_models import HEADS
from paceline.engine.models.model_config import ModelConfig, needed_shapes
from paceline.engine.models.shapes import Tensors
from paceline.engine.models.target_shape import TargetShape
from paceline.errors import ConfigError

FORMAT = "eagle3"
# The head's layer, by the name that `CpuLayer` reads it by; and in the papers' repositories.
LAYER, ORIGINAL_LAYER = "layers.0.", "midlayer."
PAPER_ARCHITECTURE = "Eagle3"
# Of the target's weights that a head was trained with, if its config says so.
TARGET_KEY = "target_weights_fingerprint"


@dataclass(frozen=True, slots=True)
class DraftHeadConfig:
    layer: ModelConfig
    # Numbers of the target's layers after which the head reads the hidden state, increasing.
    taps: tuple[int, ...]
    # Norms before `fc`: of all states together, or of each by itself.
    norms_all_states: bool
    norms_each_state: bool
    # Whether what the layer adds to is normed, and whether the output that the next token reads is.
    norms_residual: bool
    norms_output: bool


@dataclass(frozen=True, slots=True)
class LoadedDraftHead:
    name: str
    config: DraftHeadConfig
    tensors: Tensors
    # The tokens that it drafts, by the index of their logit: [head_size] int64.
    ids: NDArray[np.int64]
    weights_fingerprint: str


def known_head(model: str) -> str | None:
    """Returns the folder of the head that comes with Paceline for a model, by its name."""
    own = HEADS.get(model)
    return None if own is None else str(own.folder)


def load_draft_head(folder: str, target: TargetShape, target_fingerprint: str, dtype: torch.dtype) -> LoadedDraftHead:
    """Loads a head for this target. Raises ConfigError if it is not found, invalid, or was made for another."""
    path = Path(folder).expanduser()
    try:
        raw = (path / "config.json").read_bytes()
        given = json.loads(raw)
        files = sorted(path.glob("*.safetensors"))
        tensors: Tensors = {}
        for file in files:
            tensors |= load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise ConfigError(f"draft_head {folder!r}: {error}") from error
    try:
        if not files:
            raise ConfigError("the folder has no .safetensors files")
        if not isinstance(given, dict):
            raise ConfigError("its config.json is not an object")
        config = _read_config(given, target)
        _require_target(given, target_fingerprint)
        named = {name.replace(ORIGINAL_LAYER, LAYER): tensor for name, tensor in tensors.items()}
        ids = _take_ids(named, given, target)
        _check_shapes(config, named, target, len(ids))
    except ConfigError as error:
        raise ConfigError(f"draft_head {folder!r}: {error}") from error
    digest = hashlib.sha256(raw)
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    numbers = {name: tensor.to(dtype) for name, tensor in named.items()}
    return LoadedDraftHead(folder, config, numbers, ids, digest.hexdigest()[:16])


def _read_config(given: Mapping[str, Any], target: TargetShape) -> DraftHeadConfig:
    of_layer: Any
    kind = given.get("speculators_model_type")
    if kind is None and PAPER_ARCHITECTURE in str(given.get("architectures")):
        kind, of_layer = FORMAT, given
    else:
        of_layer = given.get("transformer_layer_config")
    if kind != FORMAT:
        raise ConfigError(f"speculators_model_type is {kind!r}; supported: {FORMAT}")
    if not isinstance(of_layer, dict):
        raise ConfigError(f"transformer_layer_config is {of_layer!r}; it must be an object")
    layer = _read_layer(of_layer)
    if layer.num_layers != 1:
        raise ConfigError(f"num_hidden_layers is {layer.num_layers}; a head has 1")
    if layer.hidden_size != target.hidden_size:
        raise ConfigError(f"hidden_size is {layer.hidden_size}; the target's is {target.hidden_size}")
    taps = given.get("eagle_aux_hidden_state_layer_ids") or usual_taps(target.num_layers)
    are_numbers = isinstance(taps, list) and all(type(each) is int for each in taps)
    if not are_numbers or sorted(set(taps)) != taps or not 0 <= taps[0] <= taps[-1] <= target.num_layers:
        raise ConfigError(
            f"eagle_aux_hidden_state_layer_ids is {taps}; they must be numbers that increase within the target's "
            f"{target.num_layers} layers"
        )
    flags = [bool(given.get(name)) for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")]
    return DraftHeadConfig(layer, tuple(taps), *flags)


def usual_taps(num_layers: int) -> list[int]:
    """Returns what EAGLE-3 reads where a config does not say it."""
    return [2, num_layers // 2, num_layers - 3]


def _read_layer(fields: Mapping[str, Any]) -> ModelConfig:
    # Here, because transformers then reads the sources of all its models.
    from transformers import AutoConfig

    model_type = fields.get("model_type")
    try:
        source = AutoConfig.for_model(**fields)
    except Exception as error:  # transformers raises many types for a bad config
        reason = str(error).splitlines()[0]
        raise ConfigError(f"its layer, of model_type {model_type!r}, has no usable config: {reason}") from error
    layer = ModelConfig.from_transformers(source)
    if "sliding_attention" in (fields.get("layer_types") or ()):
        # Also of a kind of layer that has no window elsewhere.
        layer = replace(layer, layers=(replace(layer.layers[0], window=fields.get("sliding_window") or 0),))
    return layer


def _require_target(given: Mapping[str, Any], fingerprint: str) -> None:
    named = given.get(TARGET_KEY)
    if named not in (None, fingerprint):
        raise ConfigError(f"it was trained with the target weights {named!r}; these are {fingerprint!r}")


def _take_ids(tensors: Tensors, given: Mapping[str, Any], target: TargetShape) -> NDArray[np.int64]:
    """Takes the tokens that the head drafts out of `tensors`: `d2t` has each token's id, less its index."""
    offsets, is_drafted = tensors.pop("d2t", None), tensors.pop("t2d", None)
    if is_drafted is not None and len(is_drafted) != target.vocab_size:
        raise ConfigError(f"t2d knows {len(is_drafted)} tokens; the target has {target.vocab_size}")
    size = len(tensors["lm_head.weight"]) if "lm_head.weight" in tensors else given.get("draft_vocab_size")
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


def _check_shapes(config: DraftHeadConfig, tensors: Tensors, target: TargetShape, head_size: int) -> None:
    width, num_taps = config.layer.hidden_size, len(config.taps)
    expected = {
        LAYER + name.removeprefix("model.layers.0."): shape
        for name, shape in needed_shapes(config.layer).items()
        if name.startswith("model.layers.0.")
    }
    for name in config.layer.architecture.qkv:
        rows, _ = expected[f"{LAYER}{name}.weight"]
        expected[f"{LAYER}{name}.weight"] = rows, 2 * width
    expected |= {f"{LAYER}hidden_norm.weight": (width,), "norm.weight": (width,)}
    expected["fc.weight"] = width, num_taps * target.hidden_size
    if config.norms_all_states:
        expected["input_norm.weight"] = (num_taps * target.hidden_size,)
    if config.norms_each_state:
        expected |= {f"fc_norm.{index}.weight": (target.hidden_size,) for index in range(num_taps)}
    optional = {"lm_head.weight": (head_size, width), "embed_tokens.weight": (target.vocab_size, width)}
    for name, shape in (expected | optional).items():
        if name not in tensors and name in expected:
            raise ConfigError(f"{name} is missing")
        if name in tensors and tuple(tensors[name].shape) != shape:
            raise ConfigError(f"{name} has shape {tuple(tensors[name].shape)}; it must be {shape}")
        if name in tensors and not torch.isfinite(tensors[name]).all():
            raise ConfigError(f"{name} has numbers that are not finite")
    if unknown := next((name for name in tensors if name not in expected | optional), None):
        raise ConfigError(f"{unknown} is not part of a supported {FORMAT} head")
