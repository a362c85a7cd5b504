"""Rotary position embedding (Su et al. 2021)."""

from typing import Any

import numpy as np
import torch
from torch.nn import functional
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.engine.arrays import Array
from paceline.engine.models.model_config import ModelConfig
from paceline.errors import ConfigError

# Types of `rope_parameters` that transformers has frequencies for; longrope's are the short ones (see ModelConfig).
SCALINGS = ("llama3", "linear", "yarn", "longrope")


def rope_tables(config: ModelConfig, max_len: int, rope: str | None = "") -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines, each [max_len, head_dim] float32. The first half of the sines is negated.

    `rope`: see LayerSpec. The frequencies come from transformers. Features that are not rotated have frequency 0.
    Raises ConfigError for an unsupported rope_type or a partial rotation.
    """
    if rope is None:
        return torch.ones(max_len, config.head_dim), torch.zeros(max_len, config.head_dim)
    parameters = config.source.rope_parameters[rope] if rope else config.source.rope_parameters
    kind, width = parameters["rope_type"], _rotated_features(config, parameters)
    if kind == "default":
        exponents = torch.arange(0, width, 2, dtype=torch.float32) / width
        frequencies, factor = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    elif kind in SCALINGS:
        by_type = {"layer_type": rope} if rope else {}
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config.source, torch.device("cpu"), **by_type)
    else:
        raise ConfigError(f"rope_type {kind!r} is not supported; supported: default, {', '.join(SCALINGS)}")
    if 2 * len(frequencies) != width:
        # The kernels do not check bounds.
        raise ConfigError(
            f"rope_type {kind!r} has {len(frequencies)} frequencies; {width} features of a head are rotated, so it must have "
            f"{width // 2}"
        )
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies  # [max_len, width / 2]
    still = (0, (config.head_dim - width) // 2)
    cos, sin = functional.pad(angles.cos() * factor, still, value=1.0), functional.pad(angles.sin() * factor, still)
    return torch.cat((cos, cos), 1), torch.cat((-sin, sin), 1)


def query_growth(config: ModelConfig, max_len: int) -> torch.Tensor:
    """Returns the factor of rotated queries at each position, besides `score_scale`: [max_len] float32."""
    turns = torch.arange(max_len) // config.scales.growth_every
    return 1 + config.scales.growth * torch.log1p(turns.float())


def rotary_order(config: ModelConfig) -> Array | None:
    """Returns where the rows of stacked queries, keys and values come from: [num_rows] int64; None: from the same place.

    The kernels rotate each feature of a head with the one half a head further on. So if only the first features are
    rotated, the others go after those, in each half. Scores are the same, because queries and keys are ordered alike.
    Example with a head of 6 rows, of which 4 are rotated, 0 with 2 and 1 with 3: 0 1 4 2 3 5.
    """
    head_dim = config.head_dim
    if not config.architecture.rotates_partly:
        return None
    if (width := _rotated_features(config, config.source.rope_parameters)) == head_dim:
        return None
    first, second, rest = np.split(np.arange(head_dim), [width // 2, width])
    of_head = np.concatenate([part for pair in zip((first, second), np.split(rest, 2), strict=True) for part in pair])
    starts = np.arange(config.num_heads + config.num_kv_heads) * head_dim
    values = (starts.size + np.arange(config.num_kv_heads))[:, None] * head_dim + np.arange(head_dim)
    return np.concatenate([(starts[:, None] + of_head).ravel(), values.ravel()])


def _rotated_features(config: ModelConfig, parameters: dict[str, Any]) -> int:
    part = parameters.get("partial_rotary_factor") or 1
    if part != 1 and not config.architecture.rotates_partly:
        raise ConfigError(f"partial_rotary_factor is {part!r}; it must be 1, all features of a head")
    return int(config.head_dim * part)
