"""EAGLE-1 (2401.15077), and with other weights EAGLE-2 and HASS: as `speculators` wrote it, and as the papers' repositories do.

Position t of the head reads the target's last hidden state at t - 1, normed as its output matrix reads it, and the token at t:

    hidden = the target's state                    or the head's own output at t - 1, behind a drafted token
    row = fc([embedding(token), hidden])
    x = row + attention(row), then x + mlp(norm(x)): a layer without a norm before attention
    logits = lm_head(x), by the target's own matrix

With `layernorms` embedding, attention and output have norms, and a drafted token's row reads the normed output.
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
    require_vocabulary,
)
from paceline.engine.models.target_shape import TargetShape
from paceline.errors import ConfigError

LAYER = "layers.0."


@dataclass(frozen=True, slots=True)
class EagleConfig(DraftHeadConfig):
    has_norms: bool
    # None: if the file has it.
    has_fusion_bias: bool | None


def _is_original(given: Mapping[str, Any]) -> bool:
    return "model_type" in given


def _read(given: Mapping[str, Any], of_layer: Mapping[str, Any], target: TargetShape) -> EagleConfig:
    layer = read_one_layer(of_layer, target)
    require_vocabulary(layer, target)
    if given.get("add_para_norm"):
        raise ConfigError("add_para_norm is True; it must be False")
    is_original = of_layer is given
    bias = given.get("bias") if is_original else bool(given.get("fusion_bias"))
    return EagleConfig(layer, (target.num_layers,), not is_original and bool(given.get("layernorms")), bias)


def _shapes(config: EagleConfig, target: TargetShape, head_size: int) -> tuple[Shapes, Shapes]:
    width, layer = config.layer.hidden_size, config.layer
    expected = layer_shapes(layer, 0) | {"fc.weight": (width, 2 * width)}
    if config.has_norms:
        expected |= {"embedding_layernorm.weight": (width,), "pre_lm_head_layernorm.weight": (width,)}
    else:
        del expected[f"{LAYER}{layer.architecture.norms.attention}.weight"]
    if config.has_fusion_bias:
        expected["fc.bias"] = (width,)
    optional = {
        "embed_tokens.weight": (target.vocab_size, width), "lm_head.weight": (head_size, width),
        # Frequencies in old files, which no one reads.
        f"{LAYER}self_attn.rotary_emb.inv_freq": (layer.head_dim // 2,),
    }  # fmt: skip
    if config.has_fusion_bias is None:
        optional["fc.bias"] = (width,)
    return expected, optional


EAGLE = HeadFormat("eagle", _is_original, _read, _shapes, {"fusion_fc.": "fc.", "transformer.": LAYER})
