"""Relations between a config's fields, which no tensor's shape shows: numbers that break them give wrong results, or none."""

import math
from collections.abc import Mapping
from typing import Any

from paceline.errors import ConfigError

# Fields that are whole and positive, if a config has them.
_COUNTS = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings", "sliding_window", "moe_intermediate_size", "decoder_sparse_step", "logits_scaling",
    "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
)  # fmt: skip
# Of those, the ones that may be fractions.
_FRACTIONS = ("logits_scaling", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping")
# A field must be a multiple of the other.
_MULTIPLES = (
    ("num_attention_heads", "num_key_value_heads"),
    ("num_attention_heads", "num_global_key_value_heads"),
    ("linear_num_value_heads", "linear_num_key_heads"),
    ("n_routed_experts", "n_group"),
)
# How many experts a row uses, and how many there are.
_USED_EXPERTS = ("num_experts_per_tok", "num_experts_per_token", "top_k_experts", "moe_topk", "moe_k")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")


def require_related(config: Any, names: Mapping[str, str] | None = None) -> None:
    """Raises ConfigError, with the fields and their range. `names`: what the file calls fields, if not as the config does."""
    # transformers has a config for each layer of a model whose layers differ in shape.
    for each in config.per_layer_config if getattr(config, "is_heterogeneous", False) else [config]:
        _Relations(each, names or {}).require()


class _Relations:
    def __init__(self, config: Any, names: Mapping[str, str]) -> None:
        self._config, self._names = config, names

    def require(self) -> None:
        for field in _COUNTS:
            self._require_positive(field)
        for field, divisor in _MULTIPLES:
            self._require_multiple(field, divisor)
        heads, hidden, head_dim = map(self._number, ("num_attention_heads", "hidden_size", "head_dim"))
        if heads and hidden and head_dim in (None, hidden // heads):
            # The features of a head follow from these, or may have.
            self._require_multiple("hidden_size", "num_attention_heads")
        for count in _EXPERTS:
            for used in _USED_EXPERTS:
                self._require_within(used, count)
        self._require_within("topk_group", "n_group")
        kinds = getattr(self._config, "layer_types", None) or ()
        if "sliding_attention" in kinds and getattr(self._config, "sliding_window", None) is None:
            raise ConfigError(
                f"layer_types has 'sliding_attention'; then {self._name('sliding_window')} must be positive"
            )
        parameters = getattr(self._config, "rope_parameters", None) or {}
        for each in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
            _require_rope(each, head_dim or (hidden // heads if heads and hidden else None))

    def _name(self, field: str) -> str:
        return self._names.get(field, field)

    def _number(self, field: str) -> Any:
        """Returns None for what is no number: some models have a list, one for each layer."""
        value = getattr(self._config, field, None)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def _require_positive(self, field: str) -> None:
        value = self._number(field)
        if value is not None and not (0 < value < math.inf and (field in _FRACTIONS or value == int(value))):
            raise ConfigError(f"{self._name(field)} is {value!r}; it must be positive")

    def _require_multiple(self, field: str, divisor: str) -> None:
        value, by = self._number(field), self._number(divisor)
        if value and by and (by < 0 or value % by):
            raise ConfigError(f"{self._name(field)} is {value}; it must be a multiple of {self._name(divisor)}, {by}")

    def _require_within(self, field: str, most: str) -> None:
        value, limit = self._number(field), self._number(most)
        # A dense model of a family with experts has none.
        if value is not None and limit and not 1 <= value <= limit:
            raise ConfigError(
                f"{self._name(field)} is {value}; it must be in [1, {limit}], where {limit} is {self._name(most)}"
            )


def _require_rope(parameters: Mapping[str, Any], head_dim: int | None) -> None:
    def require(is_right: bool, field: str, allowed: str) -> None:
        if not is_right:
            raise ConfigError(f"{field} of the rotary embedding is {parameters[field]!r}; it must be {allowed}")

    for field in (
        "rope_theta", "factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor",
        "beta_fast", "beta_slow", "partial_rotary_factor",
    ):  # fmt: skip
        if (value := parameters.get(field)) is not None:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            require(is_number and 0 < value < math.inf, field, "positive")
    for low, high in (("low_freq_factor", "high_freq_factor"), ("beta_slow", "beta_fast")):
        if None not in (parameters.get(low), parameters.get(high)):
            require(parameters[low] < parameters[high], low, f"less than {high}, {parameters[high]}")
    if (part := parameters.get("partial_rotary_factor")) is not None:
        require(part <= 1, "partial_rotary_factor", "at most 1, all features of a head")
        if head_dim is not None:
            width = int(head_dim * part)
            require(width > 0 and width % 2 == 0, "partial_rotary_factor", f"an even part of {head_dim} features")
