"""EAGLE-3 (2503.01840) as `speculators` writes it, and as the papers' repositories do.

Position t of the head reads the target's hidden states at t - 1, of a low, a middle and a high layer, and the token at t:

    hidden = fc([states after each of `taps`])     or the head's own output at t - 1, behind a drafted token
    row = [input_layernorm(embedding(token)), hidden_norm(hidden)]
    x = hidden + attention(row), then x + mlp(norm(x)), as in any layer
    logits = lm_head(norm(x)), of `ids` alone
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.engine.models.draft_heads.head import (
    DraftHeadConfig,
    HeadFormat,
    Shapes,
    layer_shapes,
    read_one_layer,
    read_taps,
)
from paceline.engine.models.target_shape import TargetShape

# The head's layer, by the name that `CpuLayer` reads it by; and in the papers' repositories.
LAYER, ORIGINAL_LAYER = "layers.0.", "midlayer."
PAPER_ARCHITECTURE = "Eagle3"


@dataclass(frozen=True, slots=True)
class Eagle3Config(DraftHeadConfig):
    # Norms before `fc`: of all states together, or of each by itself.
    norms_all_states: bool
    norms_each_state: bool
    # Whether what the layer adds to is normed, and whether the output that the next token reads is.
    norms_residual: bool
    norms_output: bool


def usual_taps(num_layers: int) -> list[int]:
    """Returns what EAGLE-3 reads where a config does not say it."""
    return [2, num_layers // 2, num_layers - 3]


def _is_original(given: Mapping[str, Any]) -> bool:
    return PAPER_ARCHITECTURE in str(given.get("architectures"))


def _read(given: Mapping[str, Any], of_layer: Mapping[str, Any], target: TargetShape) -> Eagle3Config:
    layer = read_one_layer(of_layer, target)
    field = "eagle_aux_hidden_state_layer_ids"
    taps = read_taps(given.get(field) or usual_taps(target.num_layers), field, target.num_layers, target)
    flags = [bool(given.get(name)) for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")]
    return Eagle3Config(layer, taps, *flags)


def _shapes(config: Eagle3Config, target: TargetShape, head_size: int) -> tuple[Shapes, Shapes]:
    width, num_taps = config.layer.hidden_size, len(config.taps)
    expected = layer_shapes(config.layer, 0)
    for name in config.layer.architecture.qkv:
        rows, _ = expected[f"{LAYER}{name}.weight"]
        expected[f"{LAYER}{name}.weight"] = rows, 2 * width
    expected |= {f"{LAYER}hidden_norm.weight": (width,), "norm.weight": (width,)}
    expected["fc.weight"] = width, num_taps * target.hidden_size
    if config.norms_all_states:
        expected["input_norm.weight"] = (num_taps * target.hidden_size,)
    if config.norms_each_state:
        expected |= {f"fc_norm.{index}.weight": (target.hidden_size,) for index in range(num_taps)}
    return expected, {"lm_head.weight": (head_size, width), "embed_tokens.weight": (target.vocab_size, width)}


EAGLE3 = HeadFormat("eagle3", _is_original, _read, _shapes, {ORIGINAL_LAYER: LAYER})
