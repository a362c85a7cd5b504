"""How far the draft's distribution q is from the target's p, and the gradient, without keeping any logits.

The head is frozen, so the gradient with respect to its input is all there is to compute, and for both losses it
has a closed form: chunk by chunk, logits are made, used and forgotten.

p is known on the target's likeliest tokens; what is left of its mass is one more outcome, "anything else".
"""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from paceline.distillation import gradient, gradient_torch
from paceline.engine.cpu.kernels.scalars import bits_of

# Rows whose logits are in memory at once.
CHUNK_ROWS = 512


class Divergence(enum.StrEnum):
    """What is minimised."""

    # KL(p || q): every mistake counts, the more so the surer the target was.
    KL = "kl"
    # 1 - sum min(p, q): exactly the chance that a drafted token is rejected (2211.17192, corollary 3.6).
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Goal:
    """p for some rows. Places count tokens of the head; mass on tokens it lacks is "anything else"."""

    places: torch.Tensor  # [num_rows, top]; the head's size where it lacks the token
    probs: torch.Tensor  # [num_rows, top] float32


@dataclass(frozen=True, slots=True)
class Agreement:
    """Sums over rows."""

    alpha: float
    top_1: float
    num_rows: int

    @property
    def mean_alpha(self) -> float:
        """The chance that a drafted token is accepted, at least."""
        return self.alpha / max(1, self.num_rows)

    @property
    def mean_top_1(self) -> float:
        """How often the likeliest token is the same."""
        return self.top_1 / max(1, self.num_rows)


class FrozenHead:
    """hidden W^T, and losses on it."""

    def __init__(self, weight: torch.Tensor) -> None:
        """weight: [head_size, hidden_size] bfloat16."""
        self._weight = weight

    def loss(self, hidden: torch.Tensor, goal: Goal, divergence: Divergence) -> torch.Tensor:
        """Mean over rows. hidden: [num_rows, hidden_size]; its gradient flows on."""
        loss: torch.Tensor = _HeadLoss.apply(hidden, self._weight, goal, divergence)
        return loss

    @torch.no_grad()
    def agreement(self, hidden: torch.Tensor, goal: Goal) -> Agreement:
        """sum min(p, q) over the target's likeliest tokens, a lower bound for alpha's; and equal likeliest tokens."""
        alpha, top_1 = 0.0, 0
        for rows in range(0, hidden.shape[0], CHUNK_ROWS):
            part = slice(rows, rows + CHUNK_ROWS)
            logits = (hidden[part].to(self._weight.dtype) @ self._weight.T).float()
            q = torch.softmax(logits, dim=-1)
            alpha += float(torch.minimum(_at(q, goal.places[part]), goal.probs[part]).sum())
            top_1 += int((logits.argmax(dim=-1) == goal.places[part, 0]).sum())
        return Agreement(alpha, top_1, hidden.shape[0])


class _HeadLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: torch.Tensor, weight: torch.Tensor, goal: Goal, divergence: Divergence
    ) -> torch.Tensor:
        by_hidden = torch.empty_like(hidden)
        total = 0.0
        for rows in range(0, hidden.shape[0], CHUNK_ROWS):
            part = slice(rows, rows + CHUNK_ROWS)
            logits = hidden[part].to(weight.dtype) @ weight.T  # [chunk, head_size]
            loss, by_logits = _differentiate(logits, goal.places[part], goal.probs[part], divergence)
            total += loss
            by_hidden[part] = (by_logits @ weight).to(by_hidden.dtype)
        ctx.save_for_backward(by_hidden / hidden.shape[0])
        return torch.tensor(total / hidden.shape[0])

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        (by_hidden,) = ctx.saved_tensors
        return by_hidden * outer[0], None, None, None


def _differentiate(
    logits: torch.Tensor, places: torch.Tensor, probs: torch.Tensor, divergence: Divergence
) -> tuple[float, torch.Tensor]:
    """The rows' losses summed, and their gradient by `logits`, which may be overwritten."""
    by_overlap = divergence is Divergence.OVERLAP
    if logits.device.type != "cpu":
        losses, by_logits = gradient_torch.differentiate(logits, places, probs, by_overlap)
        return float(losses.sum()), by_logits
    found = np.empty(logits.shape[0], np.float32)
    gradient.differentiate(bits_of(logits), places.numpy(), probs.numpy(), by_overlap, found)
    return float(found.sum(dtype=np.float64)), logits


def _at(values: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """values[row, place], 0 where the head lacks the token: [num_rows, top]."""
    inside = places < values.shape[-1]
    return values.gather(1, places.clamp(max=values.shape[-1] - 1)) * inside
