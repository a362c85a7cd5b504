"""Mixtures of experts with the engine's products, in transformers' interface (`ALL_EXPERTS_FUNCTIONS`)."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from paceline.engine.models.gguf.tensors import Parts
from paceline.engine.models.shapes import Weight
from paceline.engine.modules.matrices import Matrix

NAME = "paceline"


def are_experts(module: nn.Module) -> bool:
    return hasattr(module, "_apply_gate") and hasattr(module, "num_experts")


def use_matrices(module: Any, files: dict[str, Parts], make: Callable[..., Matrix]) -> None:
    """Replaces an experts' module's weights, [num_experts, ...], by a pair of matrices for each expert.

    `files`: the weights that are read from a file in place.
    """
    names = "gate_up_proj" if module.has_gate else "up_proj", "down_proj"
    up, down = ([make(*expert, False) for expert in _take(module, name, files.get(name))] for name in names)
    module.matrices = list(zip(up, down, strict=True))


def _take(module: Any, name: str, parts: Parts | None) -> Iterator[tuple[Weight, torch.Tensor | None]]:
    """Removes a weight. Yields each expert's, and its bias."""
    weights = module._parameters.pop(name).detach()
    biases = module._parameters.pop(f"{name}_bias").detach() if module.has_bias else None
    for index, weight in enumerate(weights.transpose(1, 2) if module.is_transposed else weights):
        in_file = tuple(part.matrix(index) for part in parts or ())
        yield in_file or weight.contiguous(), None if biases is None else biases[index]


def _run(module: Any, rows: torch.Tensor, index: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """rows: [num_rows, hidden_size]; index, weights: [num_rows, top_k]. Returns [num_rows, hidden_size].

    A row adds its experts in the order in which it chose them, whatever others chose.
    """
    found = torch.empty((*index.shape, rows.shape[1]), dtype=torch.float32, device=rows.device)
    for expert in index.unique().tolist():
        of_expert = torch.where(index == expert)
        up, down = module.matrices[expert]
        gated = up.multiply(rows[of_expert[0]])
        gated = module._apply_gate(gated) if module.has_gate else module.act_fn(gated)
        added = down.multiply(gated)
        if module.has_post_expert_norm:
            added = module.post_expert_norm(added)
        found[of_expert] = (added * weights[of_expert][:, None]).float()
    total = found[:, 0]
    for rank in range(1, index.shape[1]):
        total = total + found[:, rank]
    return total.to(rows.dtype)


ALL_EXPERTS_FUNCTIONS.register(NAME, _run)
