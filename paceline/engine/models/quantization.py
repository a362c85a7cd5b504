"""Weights as int8, one scale for each output feature; weights in blocks of whole numbers, as GGUF files have them."""

import torch
from gguf import GGMLQuantizationType, quants

from paceline.engine.models.gguf.tensors import FileTensor

BLOCK_FEATURES = 32


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight: [out_features, in_features]. Returns it as int8, and its scales: [out_features] float32."""
    scale = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-10)
    return (weight.float() / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale


def in_blocks(weight: torch.Tensor, name: str) -> FileTensor | None:
    """weight: [out_features, in_features] in a block format: Q8_0 or Q4_1. None if its rows are no whole blocks."""
    if weight.shape[1] % BLOCK_FEATURES:
        return None
    data = quants.quantize(weight.float().numpy(), GGMLQuantizationType[name])
    return FileTensor(GGMLQuantizationType[name], (weight.shape[0], weight.shape[1]), data)
