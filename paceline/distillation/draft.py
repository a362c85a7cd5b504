"""A draft model: a few of a model's layers, with the target's embedding and head."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel

from paceline.distillation.conversations import Record
from paceline.engine.models.quantization import quantize
from paceline.engine.models.shapes import HEAD_IDS, MASK_VECTORS
from paceline.engine.models.weights import LENDER_KEY, SCALE, LoadedModel
from paceline.errors import ConfigError

ALL = 0
# Fields of a config with an entry for each layer.
BY_LAYER = ("layer_types", "no_rope_layers")


def frequent_ids(records: Sequence[Record], vocab_size: int, size: int) -> NDArray[np.int64]:
    """Returns the `size` most frequent ids, sorted: [size], or [vocab_size] if `size` is ALL."""
    if size == ALL or size >= vocab_size:
        return np.arange(vocab_size)
    counts = np.zeros(vocab_size, np.int64)
    for record in records:
        # Count likeliest tokens too: a small corpus has too few distinct ones.
        np.add.at(counts, record.top_ids[:, 0], 1)
        counts += np.bincount(record.tokens[record.written], minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


def chosen_layers(num_layers: int, num_model_layers: int) -> list[int]:
    """Returns a model's first and last layers. Raises ConfigError if it has fewer than `num_layers`."""
    if not 1 <= num_layers <= num_model_layers:
        raise ConfigError(f"layers is {num_layers}; it must be in [1, {num_model_layers}], the layers of --init-from")
    last = num_layers // 2
    return [*range(num_layers - last), *range(num_model_layers - last, num_model_layers)]


def require_trainable(beginning: LoadedModel, num_masks: int) -> None:
    """Raises ConfigError if training would compute something else than the engine."""
    scales = beginning.config.scales
    if scales.logit_cap:
        raise ConfigError(
            f"init_from {beginning.name!r}: its final_logit_softcapping is {scales.logit_cap}; the loss can't cap logits"
        )
    if num_masks and (scales.embedding != 1 or any(spec.window for spec in beginning.config.layers)):
        raise ConfigError(
            f"masks is {num_masks}; it must be 0, because init_from {beginning.name!r} scales embeddings or has windows"
        )


def lender_of(target: LoadedModel, beginning: LoadedModel) -> LoadedModel:
    """Returns the model that lends embedding and head: the target, or `beginning` if its width differs.

    Raises ConfigError if the vocabularies differ.
    """
    theirs, ours = target.config.vocab_size, beginning.config.vocab_size
    if theirs != ours:
        raise ConfigError(f"init_from {beginning.name!r}: its vocab_size is {ours}; it must be the target's, {theirs}")
    return target if target.config.hidden_size == beginning.config.hidden_size else beginning


def make_backbone(
    source: Any, tensors: dict[str, torch.Tensor], num_layers: int, num_masks: int = 0
) -> PreTrainedModel:
    """Creates the draft without its head, in float32: copied layers and norm, a frozen embedding.

    `source`: a Hugging Face config; `tensors`: by Hugging Face names; `num_masks`: to learn (see `batches`).
    """
    layers = chosen_layers(num_layers, source.num_hidden_layers)
    fields = {**source.to_dict(), "num_hidden_layers": num_layers}
    for name in BY_LAYER:
        if fields.get(name):
            fields[name] = [fields[name][layer] for layer in layers]
    config = AutoConfig.for_model(**fields)
    backbone: PreTrainedModel = AutoModel.from_config(config, attn_implementation="sdpa").float()
    state = {}
    for name in backbone.state_dict():
        parts = name.split(".")
        if parts[0] == "layers":
            parts[1] = str(layers[int(parts[1])])
        state[name] = tensors["model." + ".".join(parts)].float()
    backbone.load_state_dict(state)
    embedding = backbone.get_input_embeddings().weight.requires_grad_(False)
    if num_masks:
        backbone.mask_vectors = nn.Parameter(_first_mask_vectors(tensors, embedding, num_masks))
    return backbone


def _first_mask_vectors(tensors: dict[str, torch.Tensor], embedding: torch.Tensor, num_masks: int) -> torch.Tensor:
    """Returns [num_masks, hidden_size]: the model's own, the last one repeated, or the embedding's mean."""
    known = tensors.get(MASK_VECTORS)
    vectors = embedding.detach().mean(dim=0, keepdim=True) if known is None else known.float()
    return vectors[torch.arange(num_masks).clamp(max=len(vectors) - 1)].clone()


def save_draft(folder: Path, backbone: PreTrainedModel, lender: str, head_ids: torch.Tensor) -> None:
    """Writes a folder for `--model`: int8 layers, and the name of the lender of embedding, head and tokenizer.

    head_ids: [head_size].
    """
    folder.mkdir(parents=True, exist_ok=True)
    state = {HEAD_IDS: head_ids.to(torch.int32)}
    for name, value in backbone.state_dict().items():
        value = value.cpu()
        if name == "embed_tokens.weight":
            continue
        if name == "mask_vectors":
            state[MASK_VECTORS] = value.to(torch.bfloat16)
            continue
        if value.dim() == 1:
            state[f"model.{name}"] = value.to(torch.bfloat16)
            continue
        quantized, scale = quantize(value)
        state[f"model.{name}"] = quantized
        state[f"model.{name}{SCALE}"] = scale
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    # Keys with "_" hold paths of the target.
    config = {key: value for key, value in backbone.config.to_dict().items() if not key.startswith("_")}
    config[LENDER_KEY] = lender
    (folder / "config.json").write_text(json.dumps(config, indent=2, default=str) + "\n")
