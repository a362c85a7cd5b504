"""Folders with a random draft head (EAGLE-3, as `speculators` writes it) for the tiny models of tests."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from paceline.engine.models.dummy import dummy_config

# The tiny models have two layers.
TAPS = [0, 1, 2]
# The head does not draft every third of the tokens.
EVERY = 3


def write_head(
    folder: Path, tensors: dict[str, torch.Tensor] | None = None, model: str = "tiny", **changes: Any
) -> None:
    """tensors: in place of the head's own, by name; an empty one is left out. model: its target. changes: to its config."""
    target = dummy_config(model)
    ids = torch.arange(target.vocab_size)
    ids = ids[ids % EVERY != 1]
    width, heads, kv_heads = target.hidden_size, target.num_attention_heads, target.num_key_value_heads
    head_dim, inner = width // heads, 96
    random = torch.Generator().manual_seed(5)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) * 2 / columns**0.5

    def norm(size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=random)

    layer = {
        "input_layernorm": norm(width), "hidden_norm": norm(width), "post_attention_layernorm": norm(width),
        "self_attn.q_proj": matrix(heads * head_dim, 2 * width), "self_attn.k_proj": matrix(kv_heads * head_dim, 2 * width),
        "self_attn.v_proj": matrix(kv_heads * head_dim, 2 * width), "self_attn.o_proj": matrix(width, heads * head_dim),
        "mlp.gate_proj": matrix(inner, width), "mlp.up_proj": matrix(inner, width), "mlp.down_proj": matrix(width, inner),
    }  # fmt: skip
    is_drafted = torch.zeros(target.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    own = {
        "fc.weight": matrix(width, len(TAPS) * width), "norm.weight": norm(width),
        "d2t": ids - torch.arange(len(ids)), "t2d": is_drafted,
    }  # fmt: skip
    own |= {f"layers.0.{name}.weight": tensor for name, tensor in layer.items()}
    own |= tensors or {}
    folder.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor for name, tensor in own.items() if tensor.numel()}, folder / "model.safetensors")
    of_layer = {
        "model_type": "llama", "hidden_size": width, "intermediate_size": inner, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "num_hidden_layers": 1, "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings, "rms_norm_eps": 1e-5,
    }  # fmt: skip
    config = {
        "speculators_model_type": "eagle3", "draft_vocab_size": len(ids), "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": TAPS, "transformer_layer_config": of_layer,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
