"""Weights as int8, one scale for each output feature."""

import torch


def quantise(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight: [out_features, in_features]. Returns it as int8, and its scales: [out_features] float32."""
    scale = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-10)
    return (weight.float() / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale
