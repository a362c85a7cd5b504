"""A GGUF file's metadata -> the config of transformers.

transformers could read it, too, but parses the whole vocabulary for it with `gguf.GGUFReader`: 10 s for Llama 3. And
its class for an architecture imports torch's compiler, 1 s and 100 MiB, to check the fields. So the config is of the
class that all have in common, and the fields are checked here.
"""

from typing import Any

from transformers import PreTrainedConfig

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.header import Header
from paceline.errors import ConfigError

# Mistral's models are "llama" in GGUF.
ARCHITECTURES = ("llama", "qwen2", "qwen3")
# llama.cpp's key, behind the architecture's name -> the config's field.
_NEEDED = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
}
_SPECIAL_TOKENS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "padding_token_id": "pad_token_id",
}


def read_config(header: Header, rope_factors: Array | None) -> PreTrainedConfig:
    """The model's config. `rope_factors`: [head_dim / 2], by which the rotary frequencies are divided.

    Raises ConfigError if the architecture is not supported or a key is missing.
    """
    architecture, metadata = header.architecture, header.metadata
    if architecture not in ARCHITECTURES:
        raise ConfigError(f"its architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}")
    if (parts := metadata.get("split.count", 1)) not in (0, 1):
        raise ConfigError(f"it is one of {parts} parts of a model; join them with `llama-gguf-split --merge`")

    def given(key: str, default: Any) -> Any:
        return metadata.get(f"{architecture}.{key}", default)

    fields = {field: given(key, None) for key, field in _NEEDED.items()}
    if missing := next((key for key, field in _NEEDED.items() if fields[field] is None), None):
        raise ConfigError(f"its metadata has no {architecture}.{missing}")
    heads = fields["num_attention_heads"]
    fields |= {
        "vocab_size": given("vocab_size", len(metadata.get("tokenizer.ggml.tokens", ()))),
        "num_key_value_heads": given("attention.head_count_kv", heads),
    }
    _require_positive(fields)
    fields |= {field: metadata.get(f"tokenizer.ggml.{key}") for key, field in _SPECIAL_TOKENS.items()}
    config = PreTrainedConfig(
        head_dim=given("attention.key_length", given("rope.dimension_count", fields["hidden_size"] // heads)),
        tie_word_embeddings=all(place.name != "output.weight" for place in header.places),
        **fields,
    )
    config.model_type = architecture
    # Set here, because the constructor prints advice about the form of "longrope".
    config.rope_parameters = _rope(header, fields["max_position_embeddings"], rope_factors)
    return config


def _require_positive(fields: dict[str, Any]) -> None:
    """Raises ConfigError for a field that is no number above 0: whole, but for the norms' epsilon."""
    for field, value in fields.items():
        kinds = (int, float) if field == "rms_norm_eps" else int
        if not isinstance(value, kinds) or isinstance(value, bool) or not value > 0:
            raise ConfigError(f"its metadata is not a config: {field} is {value!r}; it must be a number above 0")


def _rope(header: Header, max_len: int, factors: Array | None) -> dict[str, Any]:
    """The rotary frequencies. Raises ConfigError if they are scaled in a way that is not supported."""

    def given(key: str, default: Any) -> Any:
        return header.metadata.get(f"{header.architecture}.rope.{key}", default)

    parameters = {"rope_type": "default", "rope_theta": given("freq_base", 10_000.0)}
    if factors is not None:
        # The same at every length: what transformers calls "longrope".
        return parameters | {
            "rope_type": "longrope",
            "short_factor": factors.tolist(),
            "long_factor": factors.tolist(),
            "attention_factor": 1.0,
            "original_max_position_embeddings": max_len,
        }
    kind = given("scaling.type", "none")
    if kind == "none":
        return parameters
    if kind not in ("linear", "yarn"):
        raise ConfigError(f"its rope.scaling.type {kind!r} is not supported; supported: none, linear, yarn")
    parameters |= {"rope_type": kind, "factor": given("scaling.factor", 1.0)}
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = given("scaling.original_context_length", max_len)
    return parameters
