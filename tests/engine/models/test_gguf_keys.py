"""Keys of a GGUF file: those that change the model are honored or refused, by name."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.models.gguf.file import read_gguf
from paceline.errors import ConfigError
from tests.engine.models.gguf_files import F32, HEAD_DIM, VOCAB, frequencies, random_blocks, tiny, write_gguf

HALF = HEAD_DIM // 2
PLAIN = 20_000.0 ** -(torch.arange(HALF) / HALF)
# What llama.cpp's converter writes beside the keys that every file has.
WRITTEN: dict[str, tuple[str, dict[str, Any]]] = {
    "Llama 2": ("llama", {"tensor_data_layout": "Meta AI original pth", "attention__key_length": None}),
    "Llama 3, Mistral": ("llama", {"vocab_size": VOCAB, "attention__value_length": HEAD_DIM}),
    "Qwen2": ("qwen2", {"attention__key_length": None, "rope__dimension_count": None}),
    "Qwen2 with yarn": ("qwen2", {
        "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128,
        "rope__dimension_count": None,
    }),
    "Qwen3": ("qwen3", {"attention__value_length": HEAD_DIM, "rope__dimension_count": None}),
    "an embedding model": ("qwen3", {"pooling_type": 3}),
    "no experts": ("llama", {"expert_count": 0, "expert_used_count": 0}),
    "what llama.cpp takes for granted": ("llama", {"attention__causal": True, "rope__scaling__attn_factor": 1.0}),
}  # fmt: skip
# Keys, and what the error says.
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a part of a head": ({"rope__dimension_count": 32}, "llama.rope.dimension_count is 32; it must be 64"),
    "other values than keys": ({"attention__value_length": 32}, "llama.attention.value_length is 32; it must be 64"),
    "a window": ({"attention__sliding_window": 128}, "llama.attention.sliding_window is 128; it must be 0"),
    "a scale of attention": ({"attention__scale": 0.5}, "llama.attention.scale is 0.5, a key that is not supported"),
    "a scale of logits": ({"logit_scale": 0.5}, "llama.logit_scale is 0.5, a key that is not supported"),
    "capped logits": ({"final_logit_softcapping": 30.0}, "llama.final_logit_softcapping is 30.0, a key that is not"),
    "experts": ({"expert_count": 8}, "llama.expert_count is 8; it must be 0"),
    "both ways": ({"attention__causal": False}, "llama.attention.causal is False; it must be True"),
    "yarn's factor": ({"rope__scaling__yarn_attn_factor": 0.5}, "rope.scaling.yarn_attn_factor is 0.5, a key that"),
    "the other factor": ({"rope__scaling__attn_factor": 0.5}, "rope.scaling.attn_factor is 0.5; it must be 1.0"),
    "yarn's mixture": ({"rope__scaling__yarn_ext_factor": 0.5}, "rope.scaling.yarn_ext_factor is 0.5, a key that"),
    "a text for a factor": ({"rope__scaling__factor": "two"}, "factor is 'two'; it must be positive"),
    "a text for a head": (
        {"attention__key_length": "two", "rope__dimension_count": None}, "head_dim is 'two'; it must be positive",
    ),
    "yarn from nowhere": (
        {"rope__scaling__type": "yarn", "rope__scaling__factor": 2.0, "rope__scaling__original_context_length": 0},
        "original_max_position_embeddings is 0; it must be positive",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_what_the_converter_writes_is_read(tmp_path: Path, name: str) -> None:
    architecture, metadata = WRITTEN[name]
    assert read_gguf(tiny(tmp_path, architecture, **metadata)).config.head_dim == HEAD_DIM


@pytest.mark.parametrize("name", REFUSED)
def test_a_key_that_would_change_the_model_is_refused_by_name(tmp_path: Path, name: str) -> None:
    metadata, reason = REFUSED[name]
    with pytest.raises(ConfigError) as caught:
        read_gguf(tiny(tmp_path, **metadata))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("metadata", "factor"), [
    ({"rope__scale_linear": 4.0}, 4),
    ({"rope__scaling__factor": 4.0}, 4),
    ({"rope__scaling__factor": 2.0, "rope__scale_linear": 4.0}, 2),
    ({"rope__scaling__factor": 0.0}, 1),
    ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, 1),
])  # fmt: skip
def test_a_factor_alone_is_linear_as_in_llama_cpp(tmp_path: Path, metadata: dict[str, Any], factor: int) -> None:
    torch.testing.assert_close(frequencies(tiny(tmp_path, **metadata)), (PLAIN / factor, 1.0))


def test_the_ramp_of_yarn_is_the_files(tmp_path: Path) -> None:
    yarn = {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128}
    # Between the ends of so narrow a ramp lies no frequency but its first.
    narrow, _ = frequencies(
        tiny(tmp_path, **yarn, rope__scaling__yarn_beta_fast=1.01, rope__scaling__yarn_beta_slow=1.0)
    )
    usual, _ = frequencies(tiny(tmp_path, **yarn))
    same, _ = frequencies(tiny(tmp_path, **yarn, rope__scaling__yarn_beta_fast=32.0, rope__scaling__yarn_beta_slow=1.0))
    assert torch.equal(same, usual)
    ratios = PLAIN / narrow
    assert int(((ratios > 1.01) & (ratios < 3.99)).sum()) == 0
    assert int(((PLAIN / usual > 1.01) & (PLAIN / usual < 3.99)).sum()) > 5


@pytest.mark.parametrize(("count", "scaling", "reason"), [
    (HALF - 1, {}, "its rope_freqs.weight has shape (31,); it must be (32,)"),
    (HALF, {"rope__scaling__factor": 4.0}, "scaled twice: by rope_freqs.weight and rope.scaling, linear"),
])  # fmt: skip
def test_factors_of_another_head_and_a_second_scaling_are_refused(
    tmp_path: Path, count: int, scaling: dict[str, Any], reason: str
) -> None:
    blocks = random_blocks("llama", F32) | {"rope_freqs.weight": (np.ones(count, np.float32).view(np.uint8), F32)}
    with pytest.raises(ConfigError) as caught:
        read_gguf(write_gguf(tmp_path / "tiny.gguf", "llama", blocks, **scaling))
    assert reason in str(caught.value)
