"""Converts a GGUF file's metadata to a transformers config.

transformers would take seconds for the whole vocabulary, and its architectures' classes import torch's compiler. So the
config has the base class, and its fields are checked here.
"""

import math
from typing import Any

from transformers import PreTrainedConfig

from paceline.engine.arrays import Array
from paceline.engine.models.architectures import ARCHITECTURES as KNOWN
from paceline.engine.models.gguf.architectures import ARCHITECTURES, WINDOW_ROPE_BASE, GgufArchitecture
from paceline.engine.models.gguf.header import Header
from paceline.engine.models.relations import require_related
from paceline.errors import ConfigError

# llama.cpp's key, after the architecture's name -> the config's field.
_NEEDED = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
# Other keys that we use, after the architecture's name.
_USED = (
    "vocab_size", "attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count",
    "rope.freq_base", "rope.scale_linear", "rope.scaling.type", "rope.scaling.factor",
    "rope.scaling.original_context_length", "rope.scaling.yarn_beta_fast", "rope.scaling.yarn_beta_slow",
)  # fmt: skip
# Keys that never affect a forward pass.
_IDLE = ("tensor_data_layout", "attention.layer_norm_epsilon", "rope.scaling.finetuned", "pooling_type")
# Keys that are supported with this value only.
_IDLE_AT: dict[str, Any] = {
    "expert_count": 0, "expert_used_count": 0, "attention.causal": True, "attention.sliding_window": 0,
    "rope.scaling.attn_factor": 1.0,
}  # fmt: skip
# Fields that need not be whole numbers.
_FRACTIONS = (
    "rms_norm_eps", "rope_theta", "factor", "beta_fast", "beta_slow", "attention_multiplier", "embedding_multiplier",
    "residual_multiplier", "logits_scaling", "attn_logit_softcapping", "final_logit_softcapping", WINDOW_ROPE_BASE,
)  # fmt: skip
# Keys tokenizer.ggml.NAME_token_id: end tokens, and others.
_ENDS = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")
_NO_ENDS = ("bos", "padding", "unknown")


def read_config(header: Header, rope_factors: Array | None) -> PreTrainedConfig:
    """Reads the model's config. `rope_factors`: [head_dim / 2], divisors of the rotary frequencies.

    Raises ConfigError if a key is missing or unsupported.
    """
    name, metadata = header.architecture, header.metadata
    if (architecture := ARCHITECTURES.get(name)) is None:
        raise ConfigError(f"its architecture {name!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise ConfigError(f"it is one of {parts} parts of a model; join them with `llama-gguf-split --merge`")

    _require_known(header, architecture)

    def given(key: str, default: Any) -> Any:
        return metadata.get(f"{name}.{key}", default)

    keys = _NEEDED | dict(architecture.keys)
    fields = {field: given(key, architecture.defaults.get(field)) for key, field in keys.items()}
    if missing := next(
        (key for key, field in keys.items() if fields[field] is None and field not in architecture.defaults), None
    ):
        raise ConfigError(f"its metadata has no {name}.{missing}")
    heads = fields["num_attention_heads"]
    fields |= {
        "vocab_size": given("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ()))),
        "num_key_value_heads": given("attention.head_count_kv", heads),
    }
    _require_positive({field: value for field, value in fields.items() if value is not None})
    if fields["num_hidden_layers"] > len(header.places):  # a damaged number may be billions
        raise ConfigError(f"it has {len(header.places)} tensors for {fields['num_hidden_layers']} layers")
    rotates_partly = architecture.model_type in KNOWN and KNOWN[architecture.model_type].rotates_partly
    head_dim = (
        fields["hidden_size"] // heads
        if rotates_partly
        else given("rope.dimension_count", fields["hidden_size"] // heads)
    )
    head_dim = given("attention.key_length", head_dim)
    _require_positive({"head_dim": head_dim})
    for key in ("attention.value_length", *(() if rotates_partly else ("rope.dimension_count",))):
        if (value := given(key, head_dim)) != head_dim:
            raise ConfigError(f"its {name}.{key} is {value}; it must be {head_dim}, the features of a head")
    tokens = _token_ids(metadata)
    fields |= {"bos_token_id": tokens.get("bos"), "pad_token_id": tokens.get("padding")}
    fields |= {"eos_token_id": [tokens[name] for name in _ENDS if name in tokens] or None}
    config = PreTrainedConfig(
        head_dim=head_dim,
        tie_word_embeddings=all(place.name != "output.weight" for place in header.places),
        **fields,
    )
    config.model_type = architecture.model_type
    if rope_factors is not None and rope_factors.shape != (head_dim // 2,):
        raise ConfigError(f"its rope_freqs.weight has shape {rope_factors.shape}; it must be {(head_dim // 2,)}")
    # Set here, because the constructor prints advice about the form of "longrope".
    config.rope_parameters = _rope(header, fields["max_position_embeddings"], rope_factors)
    if rotates_partly:
        rotated = given("rope.dimension_count", head_dim)
        if type(rotated) is not int or rotated % 2 or not 0 < rotated <= head_dim:
            raise ConfigError(
                f"its {name}.rope.dimension_count is {rotated!r}; it must be even and at most {head_dim}, the features of a head"
            )
        config.rope_parameters["partial_rotary_factor"] = rotated / head_dim
    _require_positive({WINDOW_ROPE_BASE: given(WINDOW_ROPE_BASE, 1.0)})
    architecture.complete(config, given)
    others = {"attention.head_count_kv": "num_key_value_heads", "attention.key_length": "head_dim"}
    with_keys = {field: f"its {name}.{key}" for key, field in (keys | others).items()}
    require_related(config, with_keys)
    return config


def _token_ids(metadata: dict[str, Any]) -> dict[str, int]:
    size = len(metadata.get("tokenizer.ggml.tokens", ()))
    found = {}
    for name in (*_ENDS, *_NO_ENDS):
        key = f"tokenizer.ggml.{name}_token_id"
        if (token_id := metadata.get(key)) is not None:
            if type(token_id) is not int or token_id not in range(size):
                raise ConfigError(f"its {key} is {token_id!r}; it must be in [0, {size})")
            found[name] = token_id
    return found


def _require_positive(fields: dict[str, Any]) -> None:
    for field, value in fields.items():
        kinds = (int, float) if field in _FRACTIONS else int
        if not isinstance(value, kinds) or isinstance(value, bool) or not 0 < value < math.inf:
            raise ConfigError(f"its metadata is not a config: {field} is {value!r}; it must be positive")


def _require_known(header: Header, architecture: GgufArchitecture) -> None:
    """Raises ConfigError for an unknown key of the architecture, which may change the model."""
    prefix = f"{header.architecture}."
    known = (*_NEEDED, *_USED, *_IDLE, *architecture.keys, *architecture.others)
    for key, value in header.metadata.items():
        name = key.removeprefix(prefix)
        if name == key or name in known or (name in _IDLE_AT and value == _IDLE_AT[name]):
            continue
        allowed = f"; it must be {_IDLE_AT[name]}" if name in _IDLE_AT else ", a key that is not supported"
        raise ConfigError(f"its {key} is {value!r}{allowed}")


def _rope(header: Header, max_len: int, factors: Array | None) -> dict[str, Any]:
    def given(key: str, default: Any) -> Any:
        return header.metadata.get(f"{header.architecture}.rope.{key}", default)

    parameters = {"rope_type": "default", "rope_theta": given("freq_base", 10_000.0)}
    # As llama.cpp reads it: a factor alone means linear, 0 means unscaled, and old files use another key.
    kind = given("scaling.type", "linear")
    if kind not in ("none", "linear", "yarn"):
        raise ConfigError(f"its rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn")
    factor = given("scaling.factor", given("scale_linear", 0.0)) or 1.0
    is_scaled = kind == "yarn" or (kind == "linear" and factor != 1)
    _require_positive({"rope_theta": parameters["rope_theta"], "factor": factor})
    if factors is not None:
        if is_scaled:
            raise ConfigError(f"its rotary frequencies are scaled twice: by rope_freqs.weight and rope.scaling, {kind}")
        # The same at every length: what transformers calls "longrope".
        return parameters | {
            "rope_type": "longrope",
            "short_factor": factors.tolist(),
            "long_factor": factors.tolist(),
            "attention_factor": 1.0,
            "original_max_position_embeddings": max_len,
        }
    if not is_scaled:
        return parameters
    parameters |= {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        of_yarn = {
            "original_max_position_embeddings": given("scaling.original_context_length", max_len),
            "beta_fast": given("scaling.yarn_beta_fast", 32.0),
            "beta_slow": given("scaling.yarn_beta_slow", 1.0),
        }
        _require_positive(of_yarn)
        parameters |= of_yarn
    return parameters
