"""Recurrent layers of transformers, whose states the engine keeps: gated delta rules and short convolutions.

transformers computes many rows by chunks and one row by a rule of its own, with other bits. So the engine computes the part
between a layer's projections, row by row; the module here has the projections.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn

from paceline.engine.models.supported_modules import RECURRENT_TYPES
from paceline.errors import ConfigError


class StateShape(NamedTuple):
    """What a sequence keeps of a layer: numbers of float32."""

    # Rows that the convolution sees before the newest one, and the inputs in each.
    num_before: int
    num_inputs: int
    # Of the delta rule's memory; 0 without one.
    num_heads: int = 0
    key_dim: int = 0
    value_dim: int = 0


@dataclass(frozen=True)
class DeltaRule:
    """The gated delta rule (Yang et al. 2024, equation 10) after a convolution with SiLU; its output is normed and gated.

    Its inputs are queries, keys and values: [num_rows, num_features], decays and learning rates before their activations:
    [num_rows, num_heads], and gates: [num_rows, num_heads * value_dim].
    """

    taps: torch.Tensor  # [num_taps, num_features] float32
    # A head's decay is exp(-rate * softplus(x + bias)).
    decay_rates: torch.Tensor  # [num_heads] float32
    decay_biases: torch.Tensor  # [num_heads] float32
    norm: torch.Tensor  # [value_dim] float32
    norm_eps: float
    key_dim: int

    @property
    def state(self) -> StateShape:
        num_taps, num_features = self.taps.shape
        num_heads, value_dim = len(self.decay_rates), len(self.norm)
        return StateShape(num_taps - 1, num_features + 2 * num_heads, num_heads, self.key_dim, value_dim)

    @property
    def width(self) -> int:
        """Features of a row of the output."""
        return len(self.decay_rates) * len(self.norm)


@dataclass(frozen=True)
class ShortConvolution:
    """A gated convolution. Its input has two gates and x: [num_rows, 3 * width]; the first gate is before it, the second after."""

    taps: torch.Tensor  # [num_taps, width] float32
    bias: torch.Tensor  # [width] float32

    @property
    def state(self) -> StateShape:
        return StateShape(len(self.taps) - 1, self.width)

    @property
    def width(self) -> int:
        return self.taps.shape[1]


Rule = DeltaRule | ShortConvolution


class RecurrentStep(Protocol):
    """A forward pass's part in recurrent layers."""

    def recur(self, layer: int, rule: Rule, *inputs: torch.Tensor) -> torch.Tensor:
        """Returns [num_rows, width], and keeps the layer's state."""
        ...


class _Mixer(nn.Module):
    """Takes the place of a recurrent module."""

    def __init__(self, projections: list[nn.Module], output: nn.Module, layer: int, rule: Rule) -> None:
        """`projections`: of the rule's inputs."""
        super().__init__()
        self._projections, self._output = nn.ModuleList(projections), output
        self._layer, self._rule = layer, rule

    def forward(self, hidden_states: torch.Tensor, paceline_step: RecurrentStep, **others: Any) -> torch.Tensor:
        """hidden_states: [1, num_rows, hidden_size]."""
        inputs = [projection(hidden_states[0]) for projection in self._projections]
        mixed: torch.Tensor = self._output(paceline_step.recur(self._layer, self._rule, *inputs))
        return mixed[None]


def _taps(convolution: Any) -> torch.Tensor:
    """Returns a depthwise convolution's weights: [num_taps, num_features] float32."""
    return convolution.weight.detach()[:, 0].T.float().contiguous()


def _delta_rule(module: Any) -> _Mixer:
    if module.activation != "silu" or module.conv1d.bias is not None:
        raise ConfigError(f"layer {module.layer_idx}: the convolution of a delta rule must have SiLU and no bias")
    if module.head_k_dim % 4:
        raise ConfigError(f"linear_key_head_dim is {module.head_k_dim}; it must be a multiple of 4")
    rule = DeltaRule(
        taps=_taps(module.conv1d),
        decay_rates=module.A_log.detach().float().exp(),
        decay_biases=module.dt_bias.detach().float(),
        norm=module.norm.weight.detach().float(),
        norm_eps=module.norm.variance_epsilon,
        key_dim=module.head_k_dim,
    )
    projections = [module.in_proj_qkv, module.in_proj_a, module.in_proj_b, module.in_proj_z]
    return _Mixer(projections, module.out_proj, module.layer_idx, rule)


def _short_convolution(module: Any) -> _Mixer:
    taps, bias = _taps(module.conv), module.conv.bias
    rule = ShortConvolution(taps, taps.new_zeros(taps.shape[1]) if bias is None else bias.detach().float())
    return _Mixer([module.in_proj], module.out_proj, module.layer_idx, rule)


# By the names of transformers' classes.
_MIXERS = {
    "Qwen3_5GatedDeltaNet": _delta_rule,
    "Qwen3_5MoeGatedDeltaNet": _delta_rule,
    "Lfm2ShortConv": _short_convolution,
    "Lfm2MoeShortConv": _short_convolution,
}


def use_mixers(model: Any) -> None:
    """Replaces the recurrent modules. Raises ConfigError if the engine can't compute one."""
    kinds = getattr(model.config, "layer_types", None) or ()
    wanted = {layer for layer, kind in enumerate(kinds) if kind in RECURRENT_TYPES}
    for name, module in list(model.named_modules()):
        if (make := _MIXERS.get(type(module).__name__)) is not None:
            model.set_submodule(name, make(module))
            wanted.remove(module.layer_idx)
    if wanted:
        raise ConfigError(f"layer {min(wanted)} is recurrent; of such modules, only {', '.join(_MIXERS)} are supported")
