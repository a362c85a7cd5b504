"""Folders with a random draft head, as `speculators` writes it, for the tiny models of tests."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import PreTrainedConfig

from paceline.engine.models.dummy import dummy_config

# What a random head is written for: a dummy model's name, or any model's config.
Target = str | PreTrainedConfig
# The tiny models have two layers.
TAPS = [0, 1, 2]
# The head does not draft every third of the tokens.
EVERY = 3
INNER = 96
Tensors = dict[str, torch.Tensor]


class Maker:
    """A random head's tensors."""

    def __init__(self, model: Target, intermediate: int = INNER) -> None:
        """intermediate: of the MLP."""
        self.intermediate = intermediate
        self.target = dummy_config(model) if isinstance(model, str) else model
        self.width, self.vocab_size = self.target.hidden_size, self.target.vocab_size
        self.heads, self.kv_heads = self.target.num_attention_heads, self.target.num_key_value_heads
        self.head_dim = self.width // self.heads
        self._random = torch.Generator().manual_seed(5)

    def matrix(self, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self._random) * 2 / columns**0.5

    def norm(self, size: int) -> torch.Tensor:
        return 1 + 0.2 * torch.randn(size, generator=self._random)

    def layer(self, row_size: int) -> Tensors:
        """row_size: the number of features that queries, keys and values are products of."""
        width, head_dim, intermediate = self.width, self.head_dim, self.intermediate
        return {
            "self_attn.q_proj": self.matrix(self.heads * head_dim, row_size),
            "self_attn.k_proj": self.matrix(self.kv_heads * head_dim, row_size),
            "self_attn.v_proj": self.matrix(self.kv_heads * head_dim, row_size),
            "self_attn.o_proj": self.matrix(width, self.heads * head_dim),
            "mlp.gate_proj": self.matrix(intermediate, width), "mlp.up_proj": self.matrix(intermediate, width),
            "mlp.down_proj": self.matrix(width, intermediate), "post_attention_layernorm": self.norm(width),
        }  # fmt: skip

    def save(
        self, folder: Path, own: Tensors, tensors: Tensors | None, layer: dict[str, Any], config: dict[str, Any]
    ) -> None:
        own |= tensors or {}
        folder.mkdir(parents=True, exist_ok=True)
        save_file({name: tensor for name, tensor in own.items() if tensor.numel()}, folder / "model.safetensors")
        of_layer = {
            "model_type": "llama", "hidden_size": self.width, "intermediate_size": self.intermediate,
            "num_attention_heads": self.heads, "num_key_value_heads": self.kv_heads, "num_hidden_layers": 1,
            "vocab_size": self.vocab_size, "max_position_embeddings": self.target.max_position_embeddings,
            "rms_norm_eps": 1e-5,
        }  # fmt: skip
        (folder / "config.json").write_text(json.dumps({"transformer_layer_config": of_layer | layer} | config))


def write_head(
    folder: Path, tensors: Tensors | None = None, model: Target = "tiny", intermediate: int = INNER, **changes: Any
) -> None:
    """Writes an EAGLE-3 head.

    tensors: in place of the head's own, by name; an empty one is left out. model: its target. intermediate: of its MLP.
    changes: to its config.
    """
    made = Maker(model, intermediate)
    width = made.width
    ids = torch.arange(made.vocab_size)
    ids = ids[ids % EVERY != 1]
    is_drafted = torch.zeros(made.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    layer = {"input_layernorm": made.norm(width), "hidden_norm": made.norm(width)} | made.layer(2 * width)
    own = {
        "fc.weight": made.matrix(width, len(TAPS) * width), "norm.weight": made.norm(width),
        "d2t": ids - torch.arange(len(ids)), "t2d": is_drafted,
    }  # fmt: skip
    own |= {f"layers.0.{name}.weight": tensor for name, tensor in layer.items()}
    config = {
        "speculators_model_type": "eagle3", "draft_vocab_size": len(ids), "norm_before_residual": True,
        "eagle_aux_hidden_state_layer_ids": TAPS,
    }  # fmt: skip
    made.save(folder, own, tensors, {}, config | changes)


def write_eagle(folder: Path, tensors: Tensors | None = None, model: Target = "tiny", **changes: Any) -> None:
    """Writes an EAGLE-1 head, as `write_head` does."""
    made = Maker(model)
    layer = made.layer(made.width)
    # No norm is behind them: logits as large as the others' would leave no doubt.
    layer["mlp.down_proj"] /= 8
    own = {"fusion_fc.weight": made.matrix(made.width, 2 * made.width) / 8, "fusion_fc.bias": made.norm(made.width) / 8}
    own |= {f"transformer.{name}.weight": tensor for name, tensor in layer.items()}
    made.save(folder, own, tensors, {}, {"speculators_model_type": "eagle", "fusion_bias": True} | changes)


def write_dflash(folder: Path, tensors: Tensors | None = None, model: Target = "tiny", **changes: Any) -> None:
    """Writes a DFlash head of two layers, as `write_head` does."""
    made = Maker(model)
    width, head_dim = made.width, made.head_dim
    own = {
        "fc.weight": made.matrix(width, len(TAPS[:2]) * width), "hidden_norm.weight": made.norm(width),
        "norm.weight": made.norm(width),
    }  # fmt: skip
    for index in range(2):
        layer = {"input_layernorm": made.norm(width)} | made.layer(width)
        layer |= {"self_attn.q_norm": made.norm(head_dim), "self_attn.k_norm": made.norm(head_dim)}
        own |= {f"layers.{index}.{name}.weight": tensor for name, tensor in layer.items()}
    layers = {"model_type": "qwen3", "num_hidden_layers": 2, "head_dim": head_dim}
    config = {
        "speculators_model_type": "dflash", "draft_vocab_size": made.vocab_size, "block_size": 6,
        "mask_token_id": made.vocab_size - 1, "aux_hidden_state_layer_ids": TAPS[:2],
    }  # fmt: skip
    made.save(folder, own, tensors, layers, config | changes)


WRITERS: dict[str, Callable[..., None]] = {"eagle3": write_head, "eagle": write_eagle, "dflash": write_dflash}
