"""GGUF files of each architecture, written as llama.cpp's converter writes them from a random model of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    GraniteMoeConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from paceline.engine.cpu.runner import CpuModel
from paceline.engine.models.architectures import ARCHITECTURES as KNOWN
from paceline.engine.models.gguf.architectures import ARCHITECTURES
from paceline.engine.models.gguf.file import GATE_UP, read_gguf
from paceline.engine.models.gguf.tensors import dequantized
from paceline.errors import ConfigError
from tests.engine.cpu.test_llama import MAX_RELATIVE_ERROR, oracle_logits, random_model, relative_error
from tests.engine.feeding import Feeder, load_llama, load_modules
from tests.engine.models.gguf_files import HEAD_DIM, HEADS, HIDDEN, INNER, KV_HEADS, VOCAB, Blocks, write_gguf

LENGTH, WINDOW = 90, 33
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS, "num_hidden_layers": 4, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
ROPE = {"rope_type": "default", "rope_theta": 20_000.0}
LINEAR = ROPE | {"rope_type": "linear", "factor": 8.0}
YARN = ROPE | {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
YARN_KEYS = {
    "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 64,
}  # fmt: skip
THREE_OF_FOUR = ["sliding_attention"] * 3 + ["full_attention"]
GRANITE = {
    "embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.25, "logits_scaling": 1.5,
}  # fmt: skip
GRANITE_KEYS = {"embedding_scale": 3.0, "attention__scale": 0.1, "residual_scale": 0.25, "logit_scale": 1.5}
# llama.cpp's name, the model, and the keys besides those of all files.
MODELS: dict[str, tuple[str, PreTrainedConfig, dict[str, Any]]] = {
    "phi3": (
        "phi3", Phi3Config(**SHAPE, sliding_window=WINDOW, rope_parameters=ROPE | {"partial_rotary_factor": 0.75}),
        {"attention__sliding_window": WINDOW, "rope__dimension_count": 48, "attention__key_length": None},
    ),
    "smollm3": ("smollm3", SmolLM3Config(**SHAPE, rope_parameters=ROPE), {}),
    "granite": (
        "granite", GraniteConfig(**SHAPE, **GRANITE, rope_parameters=ROPE), GRANITE_KEYS,
    ),
    "gemma2": (
        "gemma2", Gemma2Config(
            **SHAPE, rope_parameters=ROPE, head_dim=HEAD_DIM, query_pre_attn_scalar=HEAD_DIM, sliding_window=WINDOW,
            attn_logit_softcapping=2.0, final_logit_softcapping=5.0, tie_word_embeddings=True,
        ),
        {
            "attention__sliding_window": WINDOW, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 5.0,
            "rope__dimension_count": None,
        },
    ),
    "gemma3": (
        "gemma3", Gemma3TextConfig(
            **SHAPE | {"num_hidden_layers": 7}, head_dim=HEAD_DIM, query_pre_attn_scalar=HEAD_DIM, sliding_window=WINDOW,
            rope_parameters={"full_attention": LINEAR, "sliding_attention": ROPE | {"rope_theta": 10_000.0}},
        ),
        {
            "attention__sliding_window": WINDOW, "rope__dimension_count": None,
            "rope__scaling__type": "linear", "rope__scaling__factor": 8.0,
        },
    ),
    "granitemoe": (
        # A small residual: routers of random numbers would spread bfloat16's errors.
        "granitemoe", GraniteMoeConfig(
            **SHAPE, **GRANITE | {"residual_multiplier": 0.1}, rope_parameters=ROPE, num_local_experts=4,
            num_experts_per_tok=2,
        ),
        GRANITE_KEYS | {"residual_scale": 0.1, "expert_count": 4, "expert_used_count": 2},
    ),
    "qwen3moe": (
        "qwen3moe", Qwen3MoeConfig(
            **SHAPE, rope_parameters=ROPE, head_dim=HEAD_DIM, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=INNER // 2, norm_topk_prob=True,
        ),
        {"expert_count": 4, "expert_used_count": 2, "expert_feed_forward_length": INNER // 2},
    ),
    "olmo2": ("olmo2", Olmo2Config(**SHAPE, rope_parameters=ROPE), {"attention__key_length": None}),
    "olmo3": (
        "olmo2", Olmo3Config(
            **SHAPE, sliding_window=WINDOW, layer_types=THREE_OF_FOUR,
            rope_parameters={"full_attention": YARN, "sliding_attention": ROPE},
        ),
        {"attention__sliding_window": WINDOW, "attention__key_length": None, **YARN_KEYS},
    ),
}  # fmt: skip
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "model.layers.": "blk.",
    "input_layernorm": "attn_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "block_sparse_moe.router": "ffn_gate_inp",
    "block_sparse_moe.experts.down_proj": "ffn_down_exps.weight", "mlp.gate.": "ffn_gate_inp.",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
}  # fmt: skip
# The norm before the MLP, where there is no other.
BEFORE_MLP = ("phi3", "smollm3", "granite", "granitemoe", "qwen3moe")
INTERLEAVED = {"smollm3", "granite", "granitemoe"}
F32 = GGMLQuantizationType.F32
# A tensor for each layer.
EMPTY: Blocks = {f"tensor{i}": (np.zeros((1, 4), np.uint8), F32) for i in range(2)}


def written(name: str, path: Path, layout: GGMLQuantizationType) -> dict[str, torch.Tensor]:
    """Writes the file, its matrices in `layout`. Returns transformers' tensors with the numbers that it holds."""
    architecture, config, metadata = MODELS[name]
    tensors, blocks = random_model(config).state_dict(), Blocks()
    if config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    for ours, tensor in tensors.items():
        values = tensor.numpy()
        if config.model_type.startswith("gemma") and ours.endswith("norm.weight"):
            values = values + np.float32(1)
        theirs = ours
        if architecture in INTERLEAVED and ours.endswith(("q_proj.weight", "k_proj.weight")):
            values = values.reshape(-1, 2, HEAD_DIM // 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)
        for old, new in (NAMES | {"post_attention_layernorm": "post_attention_norm"}).items():
            if old == "post_attention_layernorm" and architecture in BEFORE_MLP:
                new = "ffn_norm"
            theirs = theirs.replace(old, new)
        if ours.endswith(GATE_UP):
            prefix, halves = (
                theirs.split("block_sparse_moe" if "block_sparse_moe" in theirs else "mlp")[0],
                np.split(values, 2, 1),
            )
            held = []
            for name_of, half in zip(("ffn_gate_exps", "ffn_up_exps"), halves, strict=True):
                blocks[f"{prefix}{name_of}.weight"] = quantize(half, layout).view(np.uint8), layout
                held.append(dequantize(blocks[f"{prefix}{name_of}.weight"][0], layout) if layout != F32 else half)
            tensors[ours] = torch.from_numpy(np.concatenate(held, 1))
            continue
        kind = layout if values.ndim > 1 and "ffn_gate_inp" not in theirs else F32
        blocks[theirs] = quantize(values, kind).view(np.uint8), kind
        if kind != F32:
            held = dequantize(blocks[theirs][0], kind)
            if architecture in INTERLEAVED and ours.endswith(("q_proj.weight", "k_proj.weight")):
                held = held.reshape(-1, HEAD_DIM // 2, 2, HIDDEN).swapaxes(1, 2).reshape(values.shape)
            tensors[ours] = torch.from_numpy(held)
    write_gguf(path, architecture, blocks, block_count=config.num_hidden_layers, **metadata)
    return tensors


def load(name: str, *arguments: Any, **options: Any) -> CpuModel:
    is_own = MODELS[name][1].model_type in KNOWN
    return (load_llama if is_own else load_modules)(*arguments, **options)


def test_every_architecture_is_tested() -> None:
    """Here or in test_gguf.py."""
    assert {architecture for architecture, _, _ in MODELS.values()} | {"llama", "qwen2", "qwen3"} == set(ARCHITECTURES)
    assert {each.model_type for each in ARCHITECTURES.values()} - set(KNOWN) == {"granitemoe", "qwen3_moe"}


@pytest.mark.parametrize("name", MODELS)
def test_a_file_is_the_model_that_was_written(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    path, config = tmp_path / "tiny.gguf", MODELS[name][1]
    tensors = written(name, path, F32)
    read = read_gguf(path)
    assert read.tensors.keys() == tensors.keys()
    for key, tensor in tensors.items():
        torch.testing.assert_close(torch.from_numpy(dequantized(read.tensors[key])), tensor, rtol=0, atol=2e-7)
    tokens = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    logits = Feeder(load(name, str(path)), block_size=16).feed_split(tokens, [LENGTH])
    error = relative_error(logits, oracle_logits(random_model(config), tokens))
    assert error < MAX_RELATIVE_ERROR, f"relative error {error:.2e}"


@pytest.mark.parametrize("name", MODELS)
def test_blocks_in_place_are_near_the_same_numbers_at_float32(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    tensors = written(name, path, GGMLQuantizationType.Q8_0)
    model = random_model(MODELS[name][1])
    model.load_state_dict(tensors, strict=False)
    tokens = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    ours = Feeder(load(name, str(path), torch.bfloat16, "auto", in_place=True), block_size=16)
    # A wrong row would be a hundred times as far away.
    similarity = torch.cosine_similarity(ours.feed_split(tokens, [60, *[1] * 30]), oracle_logits(model, tokens), dim=1)
    assert float(similarity.median()) > 0.99


@pytest.mark.parametrize("name", ["phi3", "gemma2"])
def test_transformers_modules_multiply_with_blocks_in_place(name: str, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    written(name, path, GGMLQuantizationType.Q8_0)
    tokens = torch.randint(VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()
    own, modules = (read(str(path), torch.bfloat16, "auto", in_place=True) for read in (load_llama, load_modules))
    assert (own.is_quantized, modules.is_quantized) == (True, True)
    found, known = (Feeder(model, block_size=16).feed_split(tokens, [60, 30]) for model in (modules, own))
    assert float(torch.cosine_similarity(found, known, dim=1).median()) > 0.99


@pytest.mark.parametrize(("name", "metadata", "reason"), [
    ("granite", {"logit_scale": None}, "its metadata has no granite.logit_scale"),
    ("gemma3", {"attention__sliding_window": None}, "its metadata has no gemma3.attention.sliding_window"),
    ("gemma3", {"attention__sliding_window_pattern": "six"}, "attention.sliding_window_pattern is 'six'; it must be"),
    ("gemma2", {"attn_logit_softcapping": "fifty"}, "attn_logit_softcapping is 'fifty'; it must be positive"),
    ("smollm3", {"attention__sliding_window": 512}, "smollm3.attention.sliding_window is 512; it must be 0"),
])  # fmt: skip
def test_a_key_that_is_missing_or_wrong_is_refused_by_name(
    name: str, metadata: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    architecture, _, keys = MODELS[name]
    write_gguf(tmp_path / "tiny.gguf", architecture, EMPTY, **keys | metadata)
    with pytest.raises(ConfigError) as caught:
        read_gguf(tmp_path / "tiny.gguf")
    assert reason in str(caught.value)
