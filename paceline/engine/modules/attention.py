"""The engine's attention in transformers' interface (`ALL_ATTENTION_FUNCTIONS`).

A forward passes its step through the model's keyword arguments. transformers makes no masks for an attention of this name.
"""

from typing import Any, NamedTuple, Protocol

import torch
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from paceline.errors import ConfigError

NAME = "paceline"
# What attention may be told that changes nothing here. All else might.
IDLE = {"dropout", "position_ids", "position_embeddings", "use_cache", "is_causal", "deterministic"}


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


class AttentionStep(Protocol):
    """A forward's part in attention."""

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: LayerForm
    ) -> torch.Tensor:
        """Rotated queries: [num_heads, num_rows, head_dim], keys and values: [num_kv_heads, num_rows, head_dim].

        Returns [num_rows, num_heads * head_dim].
        """
        ...


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None,
    scaling: float | None = None, sliding_window: int | None = None, softcap: float | None = None,
    s_aux: torch.Tensor | None = None, paceline_step: AttentionStep | None = None, **others: Any,
) -> tuple[torch.Tensor, None]:  # fmt: skip
    """query: [1, num_heads, num_rows, head_dim]. Returns [1, num_rows, num_heads, head_dim]."""
    if paceline_step is None:
        raise ConfigError(f"{type(module).__name__} does not pass its keyword arguments on to attention")
    if attention_mask is not None or not getattr(module, "is_causal", True):
        raise ConfigError(f"{type(module).__name__} has a mask of its own; a token must see those before it")
    if unknown := [
        name for name, given in others.items() if given is not None and given is not False and name not in IDLE
    ]:
        raise ConfigError(f"{type(module).__name__} gives attention {unknown[0]!r}, which is not supported")
    _, num_heads, num_rows, head_dim = query.shape
    if value.shape[-1] != head_dim or key.shape[-1] != head_dim:
        raise ConfigError(
            f"{type(module).__name__} has queries of {head_dim} features, keys of {key.shape[-1]} and values of "
            f"{value.shape[-1]}; they must be equal: latent attention (MLA) is not supported"
        )
    if head_dim % 4:
        raise ConfigError(f"head_dim is {head_dim}; it must be a multiple of 4")
    scale = head_dim**-0.5 if scaling is None else float(scaling)
    form = LayerForm(num_heads, key.shape[1], head_dim, scale, sliding_window or 0, softcap or 0.0, s_aux)
    mixed = paceline_step.attend(module.layer_idx, query[0], key[0], value[0], form)
    return mixed.view(1, num_rows, num_heads, head_dim), None


ALL_ATTENTION_FUNCTIONS.register(NAME, _attend)


class FormRecorder:
    """A step that notes each layer's form and adds nothing to the rows."""

    def __init__(self) -> None:
        self.forms: dict[int, LayerForm] = {}

    def attend(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, form: LayerForm
    ) -> torch.Tensor:
        if layer in self.forms:
            raise ConfigError(f"layer {layer} attends twice in a forward, which is not supported")
        self.forms[layer] = form
        return query.transpose(0, 1).flatten(1)
