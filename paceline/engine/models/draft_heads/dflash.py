"""DFlash (2602.06036) as `speculators` writes it, and as the paper's repository does.

One forward pass of a few layers turns a block into drafts: the newest token, at position p, followed by mask tokens. The
layers see the target's hidden states at each position before p, after each of `taps`:

    context = hidden_norm(fc([states after each of `taps`]))
    a layer's keys and values = k_proj and v_proj of the context before p, and of the normed rows of the block
    its rows see the context and each other, also those behind them; keys of either are normed and rotated by position
    logits at position p + i = lm_head(norm(row of mask i)): of the token at that position, not of the one after it
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline.engine.models.draft_heads.head import (
    DraftHeadConfig,
    HeadFormat,
    Shapes,
    layer_shapes,
    read_layers,
    read_taps,
    require_vocabulary,
)
from paceline.engine.models.target_shape import TargetShape
from paceline.errors import ConfigError

PAPER_ARCHITECTURE = "DFlash"
# What a config may say only in this way: other values compute something else.
NEUTRAL = {
    "sample_from_anchor": False, "is_causal": False, "causal": False, "use_swa": False, "attention_sink_bias": False,
    "input_embedding_scale": 1, "output_multiplier": 1, "final_logit_softcapping": 0,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DFlashConfig(DraftHeadConfig):
    # The most rows of a block: it drafts one less.
    block_size: int
    mask_token_id: int


def _is_original(given: Mapping[str, Any]) -> bool:
    return PAPER_ARCHITECTURE in str(given.get("architectures"))


def _read(given: Mapping[str, Any], of_layer: Mapping[str, Any], target: TargetShape) -> DFlashConfig:
    # Whatever the config's type, both make Qwen3's layers of it.
    layer = read_layers({**of_layer, "model_type": "qwen3"}, target)
    require_vocabulary(layer, target)
    if "sliding_attention" in (of_layer.get("layer_types") or ()) or any(each.window for each in layer.layers):
        raise ConfigError("layer_types has 'sliding_attention'; the layers of a dflash head must be 'full_attention'")
    own = given.get("dflash_config") or {}
    if not isinstance(own, dict):
        raise ConfigError(f"dflash_config is {own!r}; it must be an object")
    fields = {**given, **own}
    for name, neutral in NEUTRAL.items():
        if fields.get(name) not in (None, neutral):
            raise ConfigError(f"{name} is {fields[name]!r}; it must be {neutral!r}")
    block_size = _read_int(fields, "block_size", 2, target.max_model_len)
    mask_token_id = _read_int(fields, "mask_token_id", 0, target.vocab_size - 1)
    # The repository counts from the first layer's output. It norms the last layer's, which others do not: left out here.
    field, shift = ("target_layer_ids", 1) if of_layer is given else ("aux_hidden_state_layer_ids", 0)
    taps = read_taps(fields.get(field), field, target.num_layers - 1 - shift, target)
    return DFlashConfig(layer, tuple(each + shift for each in taps), block_size, mask_token_id)


def _read_int(fields: Mapping[str, Any], name: str, least: int, most: int) -> int:
    value = fields.get(name)
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number in [{least}, {most}]")
    return value


def _shapes(config: DFlashConfig, target: TargetShape, head_size: int) -> tuple[Shapes, Shapes]:
    width = config.layer.hidden_size
    expected: Shapes = {
        "fc.weight": (width, len(config.taps) * target.hidden_size),
        "hidden_norm.weight": (width,), "norm.weight": (width,),
    }  # fmt: skip
    for index in range(config.layer.num_layers):
        expected |= layer_shapes(config.layer, index)
    return expected, {"lm_head.weight": (head_size, width), "embed_tokens.weight": (target.vocab_size, width)}


DFLASH = HeadFormat("dflash", _is_original, _read, _shapes, {})
