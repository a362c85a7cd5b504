"""Each architecture, with random weights: transformers' logits at float32, and the same bits in any batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    Ministral3Config,
    MinistralConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    SmolLM3Config,
)

from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.runner import CpuModel
from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.rope import rope_tables
from paceline.errors import ConfigError
from tests.engine.cpu.test_llama import LINEAR_ROPE, YARN_ROPE, check_logits, random_model
from tests.engine.feeding import Feeder, Rows, load_llama, load_modules

VOCAB_SIZE, LENGTH, WINDOW, BLOCK_SIZE = 128, 150, 37, 16
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
# The first layers of each kind have a window.
ALTERNATE = {"sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"] * 2}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
TWO_ROPES = {"full_attention": LINEAR_ROPE | {"rope_theta": 1e6}, "sliding_attention": PLAIN_ROPE}
# Caps that bend these models' scores and logits.
CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0}
CONFIGS: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "ministral": MinistralConfig(**SHAPE, **ALTERNATE, head_dim=16),
    "ministral3": Ministral3Config(
        **SHAPE | {"max_position_embeddings": 128}, head_dim=16,
        rope_parameters=YARN_ROPE | {"original_max_position_embeddings": 32, "llama_4_scaling_beta": 0.3},
    ),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "smollm3": SmolLM3Config(**SHAPE, no_rope_layer_interval=2, attention_bias=True, mlp_bias=True),
    "phi3": Phi3Config(**SHAPE, sliding_window=WINDOW),
    "phi3, a part of a head": Phi3Config(
        **SHAPE | {"hidden_size": 128}, rope_parameters=PLAIN_ROPE | {"partial_rotary_factor": 0.75}
    ),
    "phi3, longer than it was": Phi3Config(
        **SHAPE, original_max_position_embeddings=120, rope_parameters=PLAIN_ROPE | {
            "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 3.0, 3.5, 4.0, 5.0, 6.0], "long_factor": [9.0] * 8,
            "original_max_position_embeddings": 120,
        },
    ),
    "granite": GraniteConfig(
        **SHAPE, embedding_multiplier=3.0, attention_multiplier=0.1, residual_multiplier=0.3, logits_scaling=1.7
    ),
    "gemma2": Gemma2Config(**SHAPE, **ALTERNATE, **CAPS, head_dim=32, query_pre_attn_scalar=24),
    "gemma3_text": Gemma3TextConfig(
        **SHAPE, **ALTERNATE, head_dim=32, query_pre_attn_scalar=24, rope_parameters=TWO_ROPES
    ),
    "olmo2": Olmo2Config(**SHAPE),
    "olmo3": Olmo3Config(**SHAPE, **ALTERNATE, rope_parameters=TWO_ROPES),
}  # fmt: skip
TOKENS = torch.randint(VOCAB_SIZE, (2 * LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


def write_random(config: PreTrainedConfig, folder: Path) -> None:
    random_model(config).save_pretrained(folder)
    for file, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (folder / file).write_bytes(data)


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_random(CONFIGS[request.param], folder)
    return folder


def test_every_architecture_is_tested() -> None:
    """Here or, without windows, in test_llama.py."""
    assert {config.model_type for config in CONFIGS.values()} | {"llama"} == set(ARCHITECTURES)


def test_logits_are_transformers_own(folder: Path, request: pytest.FixtureRequest) -> None:
    model = load_llama(str(folder))
    tokens = TOKENS[: min(LENGTH, model.max_model_len)]
    logits = Feeder(model, block_size=BLOCK_SIZE).feed_split(tokens, [len(tokens)])
    check_logits(logits, random_model(CONFIGS[request.node.callspec.params["folder"]]), tokens)


# int4 layers run in one compiled call on every processor.
KINDS = {"float32": (torch.float32, "none"), "bfloat16": (torch.bfloat16, "none"), "int4": (torch.bfloat16, "int4")}


def check_bits(model: CpuModel) -> None:
    """Asserts that rows alone, in parts and beside others' have the bits of one forward pass."""
    length = min(LENGTH, model.max_model_len)
    tokens, other = TOKENS[:length], TOKENS[LENGTH : LENGTH + length]
    whole, of_other = (Feeder(model, block_size=BLOCK_SIZE).feed_split(each, [length]) for each in (tokens, other))
    # Around the windows' beginnings, and across ends of blocks.
    splits = {
        "alone": [30, *[1] * 40, length - 70],
        "by five": [*[5] * 20, length - 100],
        "in chunks": [33, 17, 64, length - 114],
    }
    for name, sizes in splits.items():
        assert torch.equal(Feeder(model, block_size=BLOCK_SIZE).feed_split(tokens, sizes), whole), name
    feeder, blocks, others = Feeder(model, block_size=BLOCK_SIZE), list(range(0, 20, 2)), list(range(21, 1, -2))
    feeder.feed(Rows(tokens[:60], 0, blocks), Rows(other[:7], 0, others))
    one, two = feeder.feed(Rows(tokens[60:63], 60, blocks), Rows(other[7:], 7, others))
    (last,) = feeder.feed(Rows(tokens[63:], 63, blocks))
    assert torch.equal(torch.cat([one, last]), whole[60:]), "ragged"
    assert torch.equal(two, of_other[7:]), "ragged"


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch(folder: Path, kind: str) -> None:
    model = load_llama(str(folder), *KINDS[kind])
    check_bits(model)


def test_transformers_modules_over_our_cache_have_the_same_logits(folder: Path, request: pytest.FixtureRequest) -> None:
    modules = load_modules(str(folder))
    length = min(LENGTH, modules.max_model_len)
    logits = Feeder(modules, block_size=BLOCK_SIZE).feed_split(TOKENS[:length], [40, 5, 1, length - 46])
    check_logits(logits, random_model(CONFIGS[request.node.callspec.params["folder"]]), TOKENS[:length])


def test_layers_in_one_call_have_the_bits_of_layers_one_by_one(folder: Path) -> None:
    model = load_llama(str(folder), *KINDS["int4"])
    decoder, found = model._decoder, []
    whole = Feeder(model).feed_split(TOKENS[:100], [90, 10])
    model._decoder = lambda *arguments: found.append(decoder(*arguments))
    assert torch.equal(Feeder(model).feed_split(TOKENS[:100], [90, 10]), whole)
    assert all(each is not None for each in found), "these layers run in one call"


def test_longrope_keeps_to_the_original_length() -> None:
    config = ModelConfig.from_transformers(CONFIGS["phi3, longer than it was"])
    assert (config.max_model_len, config.source.max_position_embeddings) == (120, 512)


# What configs say and the forward pass does not have.
REFUSED = {
    "an image's attention": (
        Gemma3TextConfig(**SHAPE, use_bidirectional_attention=True), "use_bidirectional_attention is True; it must be",
    ),
    "a part of a head": (
        SmolLM3Config(**SHAPE, rope_parameters=PLAIN_ROPE | {"partial_rotary_factor": 0.5}),
        "partial_rotary_factor is 0.5; it must be 1",
    ),
    "another activation": (GraniteConfig(**SHAPE, hidden_act="gelu"), "hidden_act is 'gelu'; it must be silu, swish"),
    "rotations for each length": (
        Olmo2Config(**SHAPE, rope_parameters=PLAIN_ROPE | {"rope_type": "dynamic", "factor": 2.0}),
        "rope_type 'dynamic' is not supported; supported: default, llama3",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_change_the_model_is_refused_by_name(name: str) -> None:
    config, reason = REFUSED[name]
    with pytest.raises(ConfigError, match=reason):
        rope_tables(ModelConfig.from_transformers(config), 10)


@pytest.mark.parametrize(("field", "value", "reason"), [
    ("layer_types", ["linear_attention"] * 4, "layer_types has 'linear_attention'; supported: full_attention, sliding"),
    ("layer_types", ["full_attention"] * 3, "layer_types has 3 entries; num_hidden_layers is 4"),
    ("no_rope_layers", [1] * 5, "no_rope_layers has 5 entries; num_hidden_layers is 4"),
])  # fmt: skip
def test_layers_of_another_kind_or_number_are_refused(field: str, value: list[Any], reason: str) -> None:
    config = SmolLM3Config(**SHAPE)
    setattr(config, field, value)
    with pytest.raises(ConfigError, match=reason):
        ModelConfig.from_transformers(config)


def test_the_check_at_load_runs_a_layer_of_each_kind(folder: Path) -> None:
    assert check_batch_invariance(load_llama(str(folder)), BLOCK_SIZE).variant_parts == []
