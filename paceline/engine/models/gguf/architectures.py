"""The architectures of GGUF files: what llama.cpp knows and a file's metadata does not say.

To add one that `models/architectures.py` has, add an entry to ARCHITECTURES.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedConfig

from paceline.errors import ConfigError

# `given(key, default)`: a key after the architecture's name.
Given = Callable[[str, Any], Any]

_WINDOW = "attention.sliding_window"
_PATTERN = "attention.sliding_window_pattern"
WINDOW_ROPE_BASE = "rope.freq_base_swa"


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    # The type's name in transformers.
    model_type: str
    # Whether llama.cpp's converter interleaves the halves of the heads of queries and keys.
    interleaves_heads: bool = False
    # The config's fields by key, without the architecture's name; those that all architectures have are not listed.
    keys: Mapping[str, str] = field(default_factory=dict)
    # Values of those fields that a file need not have.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # Keys that `complete` reads.
    others: tuple[str, ...] = ()
    # Parts of transformers' names -> what `gguf` calls them.
    aliases: Mapping[str, str] = field(default_factory=dict)
    # Sets the other fields.
    complete: Callable[[PreTrainedConfig, Given], None] = lambda config, given: None


def _set_windows(config: PreTrainedConfig, given: Given, period: int) -> None:
    """Sets the layers' types: by the file's pattern, or each `period`-th layer sees all tokens."""
    pattern, count = given(_PATTERN, period), config.num_hidden_layers
    if type(pattern) is int and pattern > 0:
        pattern = [bool((index + 1) % pattern) for index in range(count)]
    if not isinstance(pattern, list):
        raise ConfigError(
            f"its {_PATTERN} is {pattern!r}; it must be a positive number, or say for each layer if it has one"
        )
    config.layer_types = ["sliding_attention" if has_window else "full_attention" for has_window in pattern]


def _set_ropes(config: PreTrainedConfig, window_base: float) -> None:
    """Layers with a window have rotary frequencies of their own."""
    config.rope_parameters = {
        "full_attention": config.rope_parameters,
        "sliding_attention": {"rope_type": "default", "rope_theta": window_base},
    }


def _set_gemma(config: PreTrainedConfig, layers_of_27b: int) -> None:
    config.hidden_activation = "gelu_pytorch_tanh"
    # The largest models alone scale scores by hidden_size / num_attention_heads.
    is_27b = config.num_hidden_layers == layers_of_27b
    width = config.hidden_size // config.num_attention_heads
    config.query_pre_attn_scalar = width if is_27b else config.head_dim


def _gemma2(config: PreTrainedConfig, given: Given) -> None:
    _set_gemma(config, 46)
    _set_windows(config, given, 2)


def _gemma3(config: PreTrainedConfig, given: Given) -> None:
    _set_gemma(config, 62)
    _set_windows(config, given, 6)
    _set_ropes(config, given(WINDOW_ROPE_BASE, 10_000.0))


def _smollm3(config: PreTrainedConfig, given: Given) -> None:
    config.no_rope_layers = [int((index + 1) % 4 != 0) for index in range(config.num_hidden_layers)]


def _olmo2(config: PreTrainedConfig, given: Given) -> None:
    if config.sliding_window is not None:
        config.model_type = "olmo3"
        _set_windows(config, given, 4)
        _set_ropes(config, given("rope.freq_base", 10_000.0))


def _qwen3moe(config: PreTrainedConfig, given: Given) -> None:
    # llama.cpp divides the weights of a row's experts by their sum.
    config.norm_topk_prob = True


_GRANITE_KEYS = {
    "attention.scale": "attention_multiplier", "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier", "logit_scale": "logits_scaling",
}  # fmt: skip

# By llama.cpp's name.
ARCHITECTURES = {
    # Mistral's models are "llama" too.
    "llama": GgufArchitecture("llama", interleaves_heads=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3"),
    "smollm3": GgufArchitecture("smollm3", interleaves_heads=True, complete=_smollm3),
    "phi3": GgufArchitecture("phi3", keys={_WINDOW: "sliding_window"}, defaults={"sliding_window": None}),
    "granite": GgufArchitecture("granite", interleaves_heads=True, keys=_GRANITE_KEYS),
    "granitemoe": GgufArchitecture(
        "granitemoe",
        interleaves_heads=True,
        keys=_GRANITE_KEYS | {"expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
        aliases={"block_sparse_moe.router": "mlp.gate", "block_sparse_moe": "mlp"},
    ),
    "qwen3moe": GgufArchitecture(
        "qwen3_moe",
        keys={
            "expert_count": "num_experts", "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "moe_intermediate_size",
        },
        complete=_qwen3moe,
    ),
    "gemma2": GgufArchitecture(
        "gemma2",
        keys={
            _WINDOW: "sliding_window", "attn_logit_softcapping": "attn_logit_softcapping",
            "final_logit_softcapping": "final_logit_softcapping",
        },
        defaults={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        others=(_PATTERN,),
        complete=_gemma2,
    ),
    "gemma3": GgufArchitecture(
        "gemma3_text",
        keys={_WINDOW: "sliding_window", "final_logit_softcapping": "final_logit_softcapping"},
        defaults={"final_logit_softcapping": None},
        others=(_PATTERN, WINDOW_ROPE_BASE),
        complete=_gemma3,
    ),
    "olmo2": GgufArchitecture(
        "olmo2",
        keys={_WINDOW: "sliding_window"},
        defaults={"sliding_window": None},
        others=(_PATTERN,),
        complete=_olmo2,
    ),
}  # fmt: skip
