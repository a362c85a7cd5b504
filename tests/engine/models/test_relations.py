"""Fields that contradict each other are refused with their names and range: in configs by both implementations, and in GGUF."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGUFWriter

from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.cpu.test_architectures import SHAPE
from tests.engine.models.gguf_files import F32, VOCAB, add_byte_level_tokenizer, random_blocks, tiny, write_gguf
from tests.model_folder import change_config, write_model

ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
LLAMA3 = ROPE | {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
EXPERTS = {"model_type": "qwen3_moe", "num_experts": 4, "moe_intermediate_size": 32}
# Fields of a config, and what the error says.
FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "shared heads": (
        {"hidden_size": 48, "num_attention_heads": 3, "num_key_value_heads": 2},
        "num_attention_heads is 3; it must be a multiple of num_key_value_heads, 2",
    ),
    "more KV heads than heads": (
        {"num_attention_heads": 2, "num_key_value_heads": 4},
        "num_attention_heads is 2; it must be a multiple of num_key_value_heads, 4",
    ),
    "no KV heads": ({"num_key_value_heads": 0}, "num_key_value_heads is 0; it must be positive"),
    "a head's features": (
        {"model_type": "qwen2", "num_attention_heads": 3, "num_key_value_heads": 3},
        "hidden_size is 64; it must be a multiple of num_attention_heads, 3",
    ),
    "a window of none": ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0; it must be positive"),
    "a window before the text": (
        {"model_type": "mistral", "sliding_window": -8}, "sliding_window is -8; it must be positive",
    ),
    "windows of no length": (
        {"model_type": "ministral", "layer_types": ["sliding_attention"] * 2, "sliding_window": None},
        "layer_types has 'sliding_attention'; then sliding_window must be positive",
    ),
    "no positions": ({"max_position_embeddings": 0}, "max_position_embeddings is 0; it must be positive"),
    "no base": ({"rope_parameters": ROPE | {"rope_theta": 0.0}}, "rope_theta of the rotary embedding is 0.0"),
    "a negative factor": ({"rope_parameters": LLAMA3 | {"factor": -8.0}}, "factor of the rotary embedding is -8.0"),
    "a ramp from high to low": (
        {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}},
        "low_freq_factor of the rotary embedding is 4.0; it must be less than high_freq_factor, 4.0",
    ),
    "yarn from slow to fast": (
        {"rope_parameters": YARN | {"beta_fast": 1.0, "beta_slow": 32.0}},
        "beta_slow of the rotary embedding is 32.0; it must be less than beta_fast, 1.0",
    ),
    "more than a head": (
        {"model_type": "phi3", "rope_parameters": ROPE | {"partial_rotary_factor": 1.5}},
        "partial_rotary_factor of the rotary embedding is 1.5; it must be at most 1",
    ),
    "an odd part of a head": (
        {"model_type": "phi3", "rope_parameters": ROPE | {"partial_rotary_factor": 0.2}},
        "partial_rotary_factor of the rotary embedding is 0.2; it must be an even part of 16 features",
    ),
    "more experts than there are": (
        EXPERTS | {"num_experts_per_tok": 5}, "num_experts_per_tok is 5; it must be in [1, 4], where 4 is num_experts",
    ),
    "no expert": (EXPERTS | {"num_experts_per_tok": 0}, "num_experts_per_tok is 0; it must be in [1, 4]"),
    "every 0th layer": (
        EXPERTS | {"num_experts_per_tok": 2, "decoder_sparse_step": 0}, "decoder_sparse_step is 0; it must be positive",
    ),
    "a scale that divides by 0": (
        {"model_type": "granite", "logits_scaling": 0}, "logits_scaling is 0; it must be positive",
    ),
    "a negative cap": (
        {"model_type": "gemma2", "head_dim": 16, "attn_logit_softcapping": -50.0},
        "attn_logit_softcapping is -50.0; it must be positive",
    ),
}  # fmt: skip


@pytest.mark.parametrize("implementation", ["own", "transformers"])
@pytest.mark.parametrize("name", FIELDS)
def test_fields_that_contradict_each_other_are_refused(tmp_path: Path, name: str, implementation: str) -> None:
    fields, reason = FIELDS[name]
    if implementation == "own" and fields.get("model_type") == "qwen3_moe":
        implementation = "auto"
    write_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    change_config(tmp_path, **{"model_type": "llama"} | SHAPE | {"num_hidden_layers": 2} | fields)
    with pytest.raises(ConfigError) as caught:
        load_model(str(tmp_path), torch.float32, implementation=implementation)
    assert reason in str(caught.value)


# An architecture, its keys, and what the error says.
KEYS: dict[str, tuple[str, dict[str, Any], str]] = {
    "shared heads": (
        "llama", {"attention__head_count": 3},
        "its llama.attention.head_count is 3; it must be a multiple of its llama.attention.head_count_kv, 2",
    ),
    "a head's features": (
        "qwen2", {
            "attention__head_count": 6, "attention__key_length": None, "rope__dimension_count": None,
            "attention__head_count_kv": 3,
        },
        "its qwen2.embedding_length is 256; it must be a multiple of its qwen2.attention.head_count, 6",
    ),
    "more experts than there are": (
        "qwen3moe", {"expert_count": 4, "expert_used_count": 5, "expert_feed_forward_length": 32},
        "its qwen3moe.expert_used_count is 5; it must be in [1, 4], where 4 is its qwen3moe.expert_count",
    ),
    "more than a head": ("phi3", {"rope__dimension_count": 66}, "its phi3.rope.dimension_count is 66; it must be even"),
    "an odd part of a head": (
        "phi3", {"rope__dimension_count": 31}, "its phi3.rope.dimension_count is 31; it must be even and at most 64",
    ),
    "a text for a part of a head": (
        "phi3", {"rope__dimension_count": "all"}, "its phi3.rope.dimension_count is 'all'; it must be even",
    ),
    "a text for a window's base": (
        "gemma3", {"rope__freq_base_swa": "big", "attention__sliding_window": 8},
        "rope.freq_base_swa is 'big'; it must be positive",
    ),
    "an infinite norm": ("llama", {"attention__layer_norm_rms_epsilon": float("inf")}, "rms_norm_eps is inf"),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_keys_that_contradict_each_other_are_refused(tmp_path: Path, name: str) -> None:
    architecture, metadata, reason = KEYS[name]
    with pytest.raises(ConfigError) as caught:
        read_gguf(write_gguf(tmp_path / "tiny.gguf", architecture, random_blocks("llama", F32), **metadata))
    assert reason in str(caught.value)


def write(writer: GGUFWriter, key: str, value: Any) -> None:
    """Adds a key beside a tokenizer's, or in the place of one."""
    add_byte_level_tokenizer(writer)
    for data in writer.kv_data:
        data.pop(key, None)
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_int32(key, value)
        case float():
            writer.add_float32(key, value)
        case str():
            writer.add_string(key, value)
        case _:
            writer.add_array(key, value)


TEXTS = ["general.name", "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"]
LISTS = [f"tokenizer.ggml.{name}" for name in ("tokens", "merges", "scores", "token_type")]
IDS = [f"tokenizer.ggml.{name}_token_id" for name in ("bos", "eos", "eot", "unknown", "padding", "fim_sep")]
TRUTHS = [f"tokenizer.ggml.{name}" for name in ("add_bos_token", "add_eos_token", "add_space_prefix")]
WRONG = {
    "a text": (TEXTS, [3, ["a"], True]),
    "a list of": (LISTS, [3, "a", True, 0.5]),
    "a whole number": ([*IDS, "split.count", "general.alignment"], ["a", [1], 0.5, True]),
    "true or false": (TRUTHS, [1, "yes", [1]]),
}


@pytest.mark.parametrize(
    ("key", "value", "allowed"),
    [(key, value, allowed) for allowed, (keys, values) in WRONG.items() for key in keys for value in values],
)
def test_a_value_of_another_type_is_refused_by_its_key(tmp_path: Path, key: str, value: Any, allowed: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_gguf(tiny(tmp_path, add_tokenizer=partial(write, key=key, value=value)))
    assert f"its {key} is {value!r}; it must be {allowed}" in str(caught.value)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_a_list_of_numbers_for_texts_is_refused(tmp_path: Path, key: str) -> None:
    path = tiny(tmp_path, add_tokenizer=partial(write, key=f"tokenizer.ggml.{key}", value=list(range(VOCAB))))
    with pytest.raises(ConfigError, match=rf"its tokenizer\.ggml\.{key} is \[0, .*; it must be a list of texts"):
        read_gguf(path)


@pytest.mark.parametrize("alignment", [0, -8])
def test_an_alignment_that_is_not_positive_is_refused(tmp_path: Path, alignment: int) -> None:
    path = tiny(tmp_path, add_tokenizer=partial(write, key="general.alignment", value=alignment))
    with pytest.raises(ConfigError, match=f"general.alignment is {alignment}; it must be positive"):
        read_gguf(path)
