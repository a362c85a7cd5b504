"""Loads a draft head from its folder: `config.json` and safetensors, of one of FORMATS."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from paceline.catalog.known_models import HEADS
from paceline.engine.models.draft_heads.dflash import DFLASH
from paceline.engine.models.draft_heads.eagle import EAGLE
from paceline.engine.models.draft_heads.eagle3 import EAGLE3
from paceline.engine.models.draft_heads.head import (
    HeadFormat,
    LoadedDraftHead,
    check_tensors,
    require_target,
    take_ids,
)
from paceline.engine.models.shapes import Tensors
from paceline.engine.models.target_shape import TargetShape
from paceline.errors import ConfigError

# In the order in which a config without `speculators_model_type` is tried: the most general form comes last.
FORMATS = (EAGLE3, DFLASH, EAGLE)


def known_head(model: str) -> str | None:
    """Returns the folder of the head that comes with Paceline for a model, by its name."""
    own = HEADS.get(model)
    return None if own is None else str(own.folder)


def load_draft_head(
    folder: str, target: TargetShape, target_fingerprint: str, dtype: torch.dtype
) -> LoadedDraftHead[Any]:
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
        kind, of_layer = _format_of(given)
        config = kind.read(given, of_layer, target)
        require_target(given, target_fingerprint)
        named = {kind.name_of(name): tensor for name, tensor in tensors.items()}
        ids = take_ids(named, given.get("draft_vocab_size", config.layer.vocab_size), target)
        check_tensors(named, *kind.shapes(config, target, len(ids)), kind.name)
    except ConfigError as error:
        raise ConfigError(f"draft_head {folder!r}: {error}") from error
    digest = hashlib.sha256(raw)
    for file in files:
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    numbers = {name: tensor.to(dtype) for name, tensor in named.items()}
    return LoadedDraftHead(folder, kind.name, config, numbers, ids, digest.hexdigest()[:16])


def _format_of(given: Mapping[str, Any]) -> tuple[HeadFormat, Mapping[str, Any]]:
    """Returns the format, and the fields of the head's layers."""
    name = given.get("speculators_model_type")
    if name is None and (original := next((each for each in FORMATS if each.is_original(given)), None)) is not None:
        return original, given
    if (kind := next((each for each in FORMATS if each.name == name), None)) is None:
        supported = ", ".join(each.name for each in FORMATS)
        raise ConfigError(f"speculators_model_type is {name!r}; supported: {supported}")
    of_layer = given.get("transformer_layer_config")
    if not isinstance(of_layer, dict):
        raise ConfigError(f"transformer_layer_config is {of_layer!r}; it must be an object")
    return kind, of_layer
