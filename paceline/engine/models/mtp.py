"""MTP heads (multi-token prediction, 2412.19437, section 2.2): a decoder layer inside a checkpoint that drafts from the target's
last hidden state.

Position t of the head reads the target's hidden state at t - 1, after its final norm, and the token at t:

    hidden = the target's at t - 1     or the head's own output at t - 1, behind a drafted token
    row = fc([embedding_norm(embedding(token)), hidden_norm(hidden)])
    output = norm(layer(row)), which the next position reads as well
    logits = head(output)

The paper writes the hidden state first; the makers' weights have the embedding first. vLLM (`qwen3_5_mtp.py`, `deepseek_mtp.py`),
SGLang (`deepseek_nextn.py`), `speculators` (`models/mtp`) and transformers (`MtpModel`) agree on all of it, but that vLLM took the
output before its norm for the next position of DeepSeek V3, and an embedding of zeros for position 1.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from paceline.engine.models.consistency import EMBEDDING, HEAD, are_equal
from paceline.engine.models.shapes import Tensors
from paceline.errors import ConfigError

MTP_FORMAT = "mtp"
# Beginning of the names of the head's layer.
LAYER = "layers.0."
# The names of both formats, and ours. Qwen's (`mtp.`):
_QWEN = "mtp."
_QWEN_NAMES = {"pre_fc_norm_embedding.": "embedding_norm.", "pre_fc_norm_hidden.": "hidden_norm."}
# DeepSeek's and GLM's, in the number of the layer after the target's last one. All else is the layer's.
_DEEPSEEK_NAMES = {
    "enorm.": "embedding_norm.", "hnorm.": "hidden_norm.", "eh_proj.": "fc.", "shared_head.norm.": "norm.",
    "shared_head.head.": "lm_head.", "embed_tokens.": "embed_tokens.",
}  # fmt: skip
_NORMS = ("embedding_norm.weight", "hidden_norm.weight", "norm.weight")
# Of a layer by its number, in configs of transformers.
_BY_LAYER = {"layer_types": "full_attention", "mlp_layer_types": "sparse"}


@dataclass(frozen=True, slots=True)
class LoadedMtp:
    name: str
    format: ClassVar[str] = MTP_FORMAT
    # The config of a decoder whose only layer is the head's.
    source: Any
    # As in the docstring above: `fc.weight`, the norms, `layers.0.`; `embed_tokens.weight` and `lm_head.weight` if they are
    # not the target's.
    tensors: Tensors
    weights_fingerprint: str


def take_mtp(source: Any, tensors: Tensors) -> Tensors:
    """Takes the tensors of a checkpoint's MTP head out of `tensors`. Returns them by their names there; none if it has none."""
    prefixes = tuple(_prefixes(source, tensors))
    return {name: tensors.pop(name) for name in list(tensors) if prefixes and name.startswith(prefixes)}


def _prefixes(source: Any, names: Mapping[str, Any]) -> list[str]:
    first = source.num_hidden_layers
    marks = tuple(f"model.layers.{first}.{each}" for each in _DEEPSEEK_NAMES)
    if any(name.startswith(marks) for name in names):
        numbers = {int(name.split(".")[2]) for name in names if name.startswith("model.layers.")}
        return [f"model.layers.{number}." for number in sorted(numbers) if number >= first]
    return [_QWEN]


def load_mtp(name: str, source: Any, found: Tensors, target: Tensors, target_fingerprint: str) -> LoadedMtp:
    """Reads what `take_mtp` took; `target`: the target's own tensors. Raises ConfigError if the head does not fit."""
    tensors = _named(source, found)
    for own, lent in (("embed_tokens.weight", EMBEDDING), ("lm_head.weight", HEAD)):
        # A copy of the target's, in most checkpoints. A tied target's head is its embedding.
        theirs = target.get(lent, target.get(EMBEDDING))
        if own in tensors and theirs is not None and are_equal(tensors[own], theirs):
            del tensors[own]
    _check_shapes(source, tensors)
    return LoadedMtp(name, _with_one_layer(source), tensors, target_fingerprint)


def _named(source: Any, found: Tensors) -> Tensors:
    if next(iter(found)).startswith(_QWEN):
        prefix, names, rest = _QWEN, _QWEN_NAMES, ""
    else:
        prefix, names, rest = f"model.layers.{source.num_hidden_layers}.", _DEEPSEEK_NAMES, LAYER
    named = {}
    for name, tensor in found.items():
        short = name.removeprefix(prefix)
        if short == name or (not rest and short.startswith("layers.") and not short.startswith(LAYER)):
            raise ConfigError(f"{name} is of a second MTP layer; supported: one")
        known = next((each for each in names if short.startswith(each)), None)
        named[rest + short if known is None else names[known] + short.removeprefix(known)] = tensor
    return named


def _check_shapes(source: Any, tensors: Tensors) -> None:
    """Raises ConfigError for all but the layer's tensors, whose shapes transformers checks."""
    width = source.hidden_size
    needed = {"fc.weight": (width, 2 * width)} | dict.fromkeys(_NORMS, (width,))
    optional = dict.fromkeys(("embed_tokens.weight", "lm_head.weight"), (source.vocab_size, width))
    if missing := next((name for name in needed if name not in tensors), None):
        raise ConfigError(f"{missing} is missing")
    for name, tensor in tensors.items():
        shape = (needed | optional).get(name)
        if shape is None and not name.startswith(LAYER):
            raise ConfigError(f"{name} is not part of a supported MTP head")
        if shape is not None and tuple(tensor.shape) != shape:
            raise ConfigError(f"{name} has shape {tuple(tensor.shape)}; it must be {shape}")
        if not torch.isfinite(tensor).all():
            raise ConfigError(f"{name} has numbers that are not finite")


def _with_one_layer(source: Any) -> Any:
    """Returns a target's config with the head's layer alone: full attention and, in a mixture of experts, experts."""
    made = copy.deepcopy(source)
    made.num_hidden_layers = 1
    for field, kind in _BY_LAYER.items():
        if getattr(made, field, None) is not None:
            setattr(made, field, [kind])
    if hasattr(made, "first_k_dense_replace"):
        made.first_k_dense_replace = 0
    return made
