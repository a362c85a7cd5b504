"""Number formats of weights: dtypes, int8 with a scale per output feature, and GGUF's blocks."""

from collections.abc import Iterable
from typing import Protocol

import torch
from gguf import GGMLQuantizationType, quants

from paceline.engine.models.gguf.tensors import FileTensor

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
BLOCK_FEATURES = 32
# Weights in the model's dtype, and in int8.
NO_QUANTIZATION, INT8 = "none", "int8"


class Product(Protocol):
    # Of its weights: NO_QUANTIZATION, INT8, or the lower-case names of GGUF blocks.
    formats: tuple[str, ...]


def formats_of(products: Iterable[Product]) -> str:
    """Returns the formats that the weights really have, e.g. "none", "int8" or "q4_k+q6_k"."""
    return "+".join(sorted({name for each in products for name in each.formats}))


def quantize(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """weight: [out_features, in_features]. Returns int8, and its scales: [out_features] float32."""
    scale = (weight.float().abs().amax(dim=1) / 127).clamp_min(1e-10)
    return (weight.float() / scale.unsqueeze(1)).round().clamp(-127, 127).to(torch.int8), scale


def in_blocks(weight: torch.Tensor, name: str) -> FileTensor | None:
    """Quantizes weight: [out_features, in_features] to Q8_0 or Q4_1. None if its rows don't divide into blocks."""
    if weight.shape[1] % BLOCK_FEATURES:
        return None
    data = quants.quantize(weight.float().numpy(), GGMLQuantizationType[name])
    return FileTensor(GGMLQuantizationType[name], (weight.shape[0], weight.shape[1]), data)
