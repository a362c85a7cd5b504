"""transformers as the reference: the same weights, dtype and threads."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM

from paceline.engine.models.weights import find_folder


def load_reference(name: str = "smollm2-135m", dtype: torch.dtype = torch.bfloat16) -> Any:
    """Loads transformers' model from our engine's folder."""
    return AutoModelForCausalLM.from_pretrained(find_folder(name, dtype, print), dtype=dtype).eval()
