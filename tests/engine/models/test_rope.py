"""Rotary tables are as wide as a head: the kernels read all of a row."""

from typing import Any

import pytest
from transformers import LlamaConfig

from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.rope import rope_tables
from paceline.errors import ConfigError

LENGTH, HEAD_DIM = 10, 16
SHAPE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
SCALED: dict[str, Any] = {"rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 32}
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_theta": 1e4},
    "linear": {"rope_theta": 1e4, "factor": 4.0},
    "llama3": SCALED | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": SCALED,
}


def config(kind: str, **changes: Any) -> ModelConfig:
    return ModelConfig.from_transformers(
        LlamaConfig(**SHAPE, rope_parameters={"rope_type": kind} | KINDS[kind] | changes)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_tables_are_as_wide_as_a_head(kind: str) -> None:
    for table in (*rope_tables(config(kind), LENGTH), *rope_tables(config(kind, partial_rotary_factor=1.0), LENGTH)):
        assert table.shape == (LENGTH, HEAD_DIM)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_a_head_is_refused(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"partial_rotary_factor is 0\.5; it must be 1"):
        rope_tables(config(kind, partial_rotary_factor=0.5), LENGTH)


def test_frequencies_of_another_head_are_refused() -> None:
    made = config("linear")
    made.source.head_dim = 2 * HEAD_DIM
    with pytest.raises(
        ConfigError, match="rope_type 'linear' has 16 frequencies; 16 features of a head are rotated, so it must have 8"
    ):
        rope_tables(made, LENGTH)
