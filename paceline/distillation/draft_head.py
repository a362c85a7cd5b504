"""A draft head to train: one decoder layer on the target's hidden states (EAGLE-3; see `engine.models.draft_heads.eagle3`).

It begins as the target's last layer, which reads the highest of the states and knows nothing of tokens yet.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional

from paceline.engine.models.architectures import Scales
from paceline.engine.models.draft_heads.eagle3 import LAYER, Eagle3Config, usual_taps
from paceline.engine.models.draft_heads.head import TARGET_KEY, LoadedDraftHead
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.rope import rope_tables
from paceline.engine.models.shapes import as_tensor
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError

# What the head's layer has of a target's layer; its own config says no more.
LAYER_FIELDS = (
    "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "rms_norm_eps",
    "max_position_embeddings", "vocab_size", "rope_parameters",
)  # fmt: skip
# Norms of each state and of what the layer adds to: single values of hidden states reach 10,000 times the others.
FLAGS = {"norm_before_residual": True, "fc_norm": True, "norm_before_fc": False, "norm_output": False}


class DraftHead(nn.Module):
    """The layer, without embedding and head. Its tensors have the names of the file."""

    def __init__(self, config: ModelConfig, tensors: dict[str, torch.Tensor]) -> None:
        """tensors: of a head, by name. Takes those of the layer."""
        super().__init__()
        self._heads, self._kv_heads, self._eps = config.num_heads, config.num_kv_heads, config.norm_eps
        self._cos, self._sin = rope_tables(config, config.max_model_len)  # [max_model_len, head_dim]
        # A module's parameters have no dots in their names.
        self._weights = nn.ParameterDict(
            {name.replace(".", "/"): nn.Parameter(tensor.float().clone()) for name, tensor in tensors.items()}
        )

    def __getitem__(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self._weights[f"{name}.weight".replace(".", "/")]
        return weight

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name.replace("/", "."): value.detach() for name, value in self._weights.items()}

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, depth: int) -> list[torch.Tensor]:
        """Runs chains of `depth` tokens from every position; a chain's later tokens read the layer's own outputs.

        embedded: [batch, positions, hidden_size], of the tokens at the positions; states: [batch, positions, num_taps,
        hidden_size], of the target at the positions before. Returns the layer's outputs, normed, by depth.
        """
        normed = [self._norm(states[:, :, index].float(), f"fc_norm.{index}") for index in range(states.shape[2])]
        state = functional.linear(torch.cat(normed, -1), self["fc"])
        token = self._norm(embedded.float(), f"{LAYER}input_layernorm")
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        found: list[torch.Tensor] = []
        for number in range(depth):
            if number:
                # Each chain's output is the state of its next token, one position on.
                state = functional.pad(found[-1], (0, 0, 1, 0))[:, :-1]
            x = self._norm(state.float(), f"{LAYER}hidden_norm")
            row = torch.cat([token, x], -1)
            query = self._rotated(self._part(row, "q", self._heads))
            keys.append(self._rotated(self._part(row, "k", self._kv_heads)))
            values.append(self._part(row, "v", self._kv_heads))
            mixed = functional.scaled_dot_product_attention(
                query, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=_sees(x.shape[1], number).to(x.device),
                enable_gqa=True,
            )  # fmt: skip
            x = x + self._product(mixed.transpose(1, 2).flatten(2), "self_attn.o_proj")
            row = self._norm(x, f"{LAYER}post_attention_layernorm")
            bent = functional.silu(self._product(row, "mlp.gate_proj")) * self._product(row, "mlp.up_proj")
            found.append(x + self._product(bent, "mlp.down_proj"))
        return [self._norm(each, "norm") for each in found]

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.rms_norm(x, x.shape[-1:], self[name], self._eps)

    def _product(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return functional.linear(x, self[LAYER + name])

    def _part(self, row: torch.Tensor, name: str, heads: int) -> torch.Tensor:
        """Returns [batch, heads, positions, head_dim]."""
        return self._product(row, f"self_attn.{name}_proj").unflatten(-1, (heads, -1)).transpose(1, 2)

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = (each[: x.shape[2]].to(x) for each in (self._cos, self._sin))
        half = x.shape[-1] // 2
        return x * cos + torch.cat([x[..., half:], x[..., :half]], -1) * sin


def _sees(num_positions: int, depth: int) -> torch.Tensor:
    """Returns which keys a chain's token of this depth sees: [num_positions, (depth + 1) * num_positions].

    Keys of depth 0 read the target's states, up to where the chain began; of the others each chain has its own.
    """
    row, column = torch.arange(num_positions)[:, None], torch.arange(num_positions)
    mask = torch.cat([column <= row - depth, *(column == row - each for each in reversed(range(depth)))], 1)
    # No chain begins before position 0, and a softmax needs a key.
    mask[:depth, 0] = True
    return mask


def require_head_target(target: LoadedModel) -> None:
    """Raises ConfigError for a target whose layers are not like a head's, or that has too few of them."""
    config = target.config
    if config.source.model_type != "llama" or config.scales != Scales():
        raise ConfigError(
            f"target {target.name!r} is of type {config.source.model_type!r}; heads are trained for 'llama'"
        )
    taps = usual_taps(config.num_layers)
    if sorted(set(taps)) != taps:
        raise ConfigError(f"target {target.name!r} has {config.num_layers} layers; a head reads three of at least 7")


def new_head(target: LoadedModel, state_size: float) -> DraftHead:
    """Begins as the target's last layer and final norm. `state_size`: the root mean square of what that layer reads."""
    config = target.config
    last = f"model.layers.{config.num_layers - 1}."
    layer = {
        name.removeprefix(last): as_tensor(value, torch.float32)
        for name, value in target.tensors.items()
        if name.startswith(last)
    }
    width = config.hidden_size
    tensors = {f"fc_norm.{index}.weight": torch.ones(width) for index in range(3)}
    tensors["fc.weight"] = torch.cat([torch.zeros(width, 2 * width), torch.eye(width)], 1)
    tensors |= {f"{LAYER}{name}.weight": torch.ones(width) for name in ("input_layernorm", "hidden_norm")}
    for name in ("q", "k", "v"):
        weight = layer[f"self_attn.{name}_proj.weight"] * layer["input_layernorm.weight"]
        tensors[f"{LAYER}self_attn.{name}_proj.weight"] = torch.cat([torch.zeros_like(weight), weight], 1)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        # What it adds to has the size 1 here.
        tensors[f"{LAYER}{name}.weight"] = layer[f"{name}.weight"] / state_size
    for name in ("mlp.gate_proj", "mlp.up_proj", "post_attention_layernorm"):
        tensors[f"{LAYER}{name}.weight"] = layer[f"{name}.weight"]
    tensors["norm.weight"] = as_tensor(target.tensors["model.norm.weight"], torch.float32)
    return DraftHead(config, tensors)


def require_own_form(head: LoadedDraftHead[Eagle3Config], taps: Sequence[int]) -> None:
    """Raises ConfigError for a head that computes something else than `DraftHead` trains."""
    config = head.config
    is_own = config.norms_each_state and config.norms_residual and not (config.norms_all_states or config.norms_output)
    has_more = {"lm_head.weight", "embed_tokens.weight"} & head.tensors.keys()
    if not is_own or has_more or config.taps != tuple(taps) or config.layer.source.model_type != "llama":
        raise ConfigError(
            f"init_from {head.name!r} is not a head that `paceline distill --head` has made for this target"
        )


def further_head(head: LoadedDraftHead[Eagle3Config]) -> DraftHead:
    """Begins as a head that `save_head` has written."""
    return DraftHead(head.config.layer, dict(head.tensors))


def save_head(folder: Path, head: DraftHead, target: LoadedModel, ids: NDArray[np.int64]) -> None:
    """Writes a folder for `--draft-head`, in bfloat16. The target lends embedding and head. ids: [head_size]."""
    folder.mkdir(parents=True, exist_ok=True)
    is_drafted = torch.zeros(target.config.vocab_size, dtype=torch.bool)
    is_drafted[torch.from_numpy(ids)] = True
    tensors = {name: tensor.cpu().to(torch.bfloat16) for name, tensor in head.tensors.items()}
    offsets = torch.from_numpy(ids) - torch.arange(len(ids))
    save_file({**tensors, "d2t": offsets, "t2d": is_drafted}, folder / "model.safetensors", metadata={"format": "pt"})
    source = target.config.source.to_dict()
    layer = {name: source[name] for name in LAYER_FIELDS}
    layer |= {"model_type": "llama", "num_hidden_layers": 1, "head_dim": target.config.head_dim}
    config: dict[str, Any] = {
        "speculators_model_type": "eagle3", "draft_vocab_size": len(ids), **FLAGS,
        "eagle_aux_hidden_state_layer_ids": usual_taps(target.config.num_layers), TARGET_KEY: target.weights_fingerprint,
        "transformer_layer_config": layer,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
