"""Rotary position embedding (Su et al. 2021)."""

from typing import Any

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.engine.models.config import ModelConfig
from paceline.errors import ConfigError


def rope_tables(config: ModelConfig, max_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines, each [max_len, head_dim] float32. The first half of the sines is negated.

    The frequencies come from transformers. Raises ConfigError for an unsupported rope_type or a partial rotation.
    """
    parameters = config.source.rope_parameters
    kind = parameters["rope_type"]
    if (part := parameters.get("partial_rotary_factor")) not in (None, 1):
        raise ConfigError(f"partial_rotary_factor is {part!r}; it must be 1, all features of a head")
    if kind == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies, factor = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    elif kind in ("llama3", "linear", "yarn") or _has_one_scale(parameters):
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config.source, torch.device("cpu"))
    else:
        raise ConfigError(f"rope_type {kind!r} is not supported; supported: default, llama3, linear, yarn")
    if 2 * len(frequencies) != config.head_dim:
        # The kernels do not check bounds.
        raise ConfigError(
            f"rope_type {kind!r} has {len(frequencies)} frequencies; head_dim is {config.head_dim}, so it must have {config.head_dim // 2}"
        )
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies  # [max_len, head_dim / 2]
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)


def _has_one_scale(parameters: dict[str, Any]) -> bool:
    """Whether the same factors apply at every length, as GGUF files express Llama 3.1's scaling."""
    return parameters["rope_type"] == "longrope" and parameters["short_factor"] == parameters["long_factor"]
