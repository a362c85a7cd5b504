"""Muon for the layers' matrices (2502.16982, section 2.2), AdamW for the norms' vectors."""

from collections.abc import Iterable
from typing import Any

import torch


class Optimizer:
    """One step of both; a matrix moves as far as AdamW would move it, so both take one learning rate."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], weight_decay: float = 0.01) -> None:
        parameters = list(parameters)
        matrices = [each for each in parameters if each.dim() == 2]
        vectors = [each for each in parameters if each.dim() != 2]
        self._parts: tuple[torch.optim.Optimizer, ...] = (
            torch.optim.Muon(matrices, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw"),
            torch.optim.AdamW(vectors, betas=(0.9, 0.98), weight_decay=weight_decay),
        )

    def step(self, rate: float) -> None:
        """Moves the parameters, and forgets their gradients."""
        for part in self._parts:
            for group in part.param_groups:
                group["lr"] = rate
            part.step()
            part.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict[str, Any]]:
        return [part.state_dict() for part in self._parts]

    def load_state_dict(self, states: list[dict[str, Any]]) -> None:
        for part, state in zip(self._parts, states, strict=True):
            part.load_state_dict(state)
