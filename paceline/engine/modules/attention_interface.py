"""The engine's attention in transformers' interface (`ALL_ATTENTION_FUNCTIONS`).

A forward passes its step through the model's keyword arguments. One forward pass of a row, the probe, finds out what each layer's
attention is: its masks are functions, which say what a row would see (`ALL_MASK_ATTENTION_FUNCTIONS`). Later forwards make
no masks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paceline.errors import ConfigError

NAME, PROBE = "paceline", "paceline_probe"
# What attention may be told that changes nothing here: the mask says what the window is. All else might.
IDLE = {
    "dropout", "position_ids", "position_embeddings", "use_cache", "is_causal", "deterministic", "sliding_window"
}  # fmt: skip


class LayerForm(NamedTuple):
    """The shape of a layer's attention, and what becomes of its scores."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    # Factor of scores.
    scale: float
    # The number of tokens that a token sees, itself included; 0: all.
    window: int
    # A score x becomes cap * tanh(x / cap); 0: x.
    cap: float
    # [num_heads] float32: scores without a value, which take a part of the weight; None: none.
    sinks: torch.Tensor | None


class LayerGroup(NamedTuple):
    """Layers of one shape, whose caches lie together."""

    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int


def grouped(forms: dict[int, LayerForm]) -> dict[LayerGroup, list[int]]:
    """Returns the layers of each shape."""
    by_shape: dict[tuple[int, int, int], list[int]] = {}
    for layer, form in forms.items():
        by_shape.setdefault(form[:3], []).append(layer)
    return {LayerGroup(len(layers), *shape): layers for shape, layers in by_shape.items()}


class AttentionStep(Protocol):
    """A forward pass's part in attention."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Rotated queries: [num_heads, num_rows, head_dim], keys and values: [num_kv_heads, num_rows, head_dim].

        Returns [num_rows, num_heads * head_dim].
        """
        ...


class FormRecorder:
    """The probe's step."""

    def __init__(self) -> None:
        # By layer.
        self.forms: dict[int, LayerForm] = {}

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return query.transpose(0, 1).flatten(1)


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None,
    paceline_step: AttentionStep, **known: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """query: [1, num_heads, num_rows, head_dim]. Returns [1, num_rows, num_heads, head_dim]. `known`: as in the probe."""
    mixed = paceline_step.attend(module.layer_idx, query[0], key[0], value[0])
    return mixed.view(1, query.shape[2], query.shape[1], query.shape[3]), None


def _record(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, softcap: float | None = None, s_aux: torch.Tensor | None = None,
    paceline_step: FormRecorder | None = None, **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    name = type(module).__name__
    if paceline_step is None:
        raise ConfigError(f"{name} does not pass its keyword arguments on to attention")
    if attention_mask is None or attention_mask.ndim or not getattr(module, "is_causal", True):
        raise ConfigError(f"{name} has a mask of its own; a token must see those before it")
    if unknown := [
        key for key, given in others.items() if given is not None and given is not False and key not in IDLE
    ]:
        raise ConfigError(f"{name} gives attention {unknown[0]!r}, which is not supported")
    if module.layer_idx in paceline_step.forms:
        raise ConfigError(f"{name} attends twice in layer {module.layer_idx}, which is not supported")
    num_heads, head_dim = query.shape[1], query.shape[3]
    if (widths := (head_dim, key.shape[-1], value.shape[-1])) != (head_dim,) * 3:
        raise ConfigError(
            f"{name} has queries, keys and values of {widths} features; they must be equal: latent attention (MLA) is not "
            "supported"
        )
    if head_dim % 4:
        raise ConfigError(f"head_dim is {head_dim}; it must be a multiple of 4")
    scale, window = head_dim**-0.5 if scaling is None else float(scaling), int(attention_mask)
    form = LayerForm(num_heads, key.shape[1], head_dim, scale, window, float(softcap or 0), s_aux)
    paceline_step.forms[module.layer_idx] = form
    return _attend(module, query, key, value, None, paceline_step)


def _window_of(config: Any, mask_function: Callable[..., torch.Tensor], **unused: Any) -> torch.Tensor:
    """Returns the number of tokens that a token sees, 0 for all, in the place of a mask."""
    last = config.get_text_config().max_position_embeddings - 1
    positions = torch.arange(last + 2)
    found = [mask_function(0, 0, torch.tensor(query), positions) for query in (last, last - 1)]  # each [last + 2]
    window = int(found[0].sum())
    for query, seen in zip((last, last - 1), found, strict=True):
        if not torch.equal(seen, (positions <= query) & (positions > query - window)):
            raise ConfigError("the model's mask is neither causal nor a sliding window")
    return torch.tensor(window if window <= last else 0)


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)
ALL_ATTENTION_FUNCTIONS.register(PROBE, _record)
ALL_MASK_ATTENTION_FUNCTIONS.register(PROBE, _window_of)
