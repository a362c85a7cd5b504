"""Tiny random checkpoints with an MTP head inside, by the names that their makers give its tensors."""

import copy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, PreTrainedConfig

from paceline.engine.models.dummy import dummy_tokenizer_files
from tests.engine.cpu.test_architectures import SHAPE
from tests.engine.cpu.test_llama import random_model

EXPERTS = {
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
# Latent attention of equal widths, which is all of it that the engine runs.
LATENT = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 32,
    "num_key_value_heads": 4,
}  # fmt: skip
MTP_MODELS: dict[str, dict[str, Any]] = {
    # A hybrid: three of its four layers are recurrent, and the head's is not.
    "qwen3_5_text": {
        "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32,
        "linear_value_head_dim": 16, "tie_word_embeddings": True,
    },
    "glm4_moe": EXPERTS | {"head_dim": 32, "n_routed_experts": 8},
    "deepseek_v3": EXPERTS | LATENT | {"n_routed_experts": 8},
    # Its published models have such widths.
    "glm4_moe_lite": EXPERTS | LATENT | {"n_routed_experts": 8},
}  # fmt: skip
# Names of what is not the layer's: what reads the embedding, the hidden state and both, and the last norm.
NAMES = dict.fromkeys(MTP_MODELS, ("enorm", "hnorm", "eh_proj", "shared_head.norm")) | {
    "qwen3_5_text": ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")
}


def config_of(kind: str, **changes: Any) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **SHAPE | MTP_MODELS[kind] | changes)


def prefix_of(kind: str) -> str:
    return "mtp." if kind == "qwen3_5_text" else f"model.layers.{SHAPE['num_hidden_layers']}."


def head_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Of a model that has only a layer of the head's kind."""
    made = copy.deepcopy(config)
    made.num_hidden_layers, made.first_k_dense_replace = 1, 0
    if getattr(made, "layer_types", None):
        made.layer_types = ["full_attention"]
    if getattr(made, "mlp_layer_types", None):
        made.mlp_layer_types = ["sparse"]
    return made


def head_tensors(kind: str) -> dict[str, torch.Tensor]:
    """By their names in the checkpoint. DeepSeek's and GLM's have copies of the target's embedding and head."""
    config, prefix = config_of(kind), prefix_of(kind)
    with TemporaryDirectory() as folder:
        # As the makers' files have a layer: each expert apart.
        random_model(head_config(config)).save_pretrained(folder)
        stored = load_file(Path(folder) / "model.safetensors")
    # Qwen stores norms less one.
    random, width, norm = torch.Generator().manual_seed(3), config.hidden_size, 0.0 if kind == "qwen3_5_text" else 1.0
    of_layer = prefix + ("layers.0." if kind == "qwen3_5_text" else "")
    tensors = {
        of_layer + name.removeprefix("model.layers.0."): tensor - (1 - norm) * ("norm" in name)
        for name, tensor in stored.items()
        if name.startswith("model.layers.0.")
    }
    for name in NAMES[kind]:
        is_matrix = name in ("fc", "eh_proj")
        shape = (width, 2 * width) if is_matrix else (width,)
        tensors[f"{prefix}{name}.weight"] = 0.2 * torch.randn(*shape, generator=random) + norm * (not is_matrix)
    return tensors


def write_mtp(folder: Path, kind: str, tensors: dict[str, torch.Tensor] | None = None, **changes: Any) -> None:
    """tensors: in place of the head's own, by their names in the checkpoint; an empty one is left out.

    changes: to the target's config.
    """
    config = config_of(kind, **changes)
    random_model(config).save_pretrained(folder)
    for file, data in dummy_tokenizer_files(config.vocab_size).items():
        (folder / file).write_bytes(data)
    stored = load_file(folder / "model.safetensors")
    head = head_tensors(kind)
    if kind != "qwen3_5_text":
        head[f"{prefix_of(kind)}embed_tokens.weight"] = stored["model.embed_tokens.weight"].clone()
        head[f"{prefix_of(kind)}shared_head.head.weight"] = stored["lm_head.weight"].clone()
    head |= tensors or {}
    kept = {name: tensor for name, tensor in head.items() if tensor.numel()}
    save_file(stored | kept, folder / "model.safetensors", {"format": "pt"})
