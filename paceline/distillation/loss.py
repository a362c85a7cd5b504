"""The frozen head, and the loss between the draft's distribution q and the target's p.

Both losses have a closed-form gradient in the head's input, so logits exist for one chunk at a time. p is known for the
target's likeliest tokens; the rest of its mass counts as one outcome.

The head has only frequent tokens: rare ones cost as much and are almost never drafted. The output stays correct without
them, since tokens with q = 0 are never proposed.
"""

import enum
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.distillation.gradient import differentiate, differentiate_in_torch
from paceline.engine.cpu.kernels.scalars import bits_of


class HeadIndex:
    def __init__(self, ids: NDArray[np.int64], vocab_size: int) -> None:
        self.absent = len(ids)
        self._indices = torch.full((vocab_size,), self.absent)
        self._indices[torch.from_numpy(ids)] = torch.arange(len(ids))

    def indices_of(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._indices[token_ids]


CHUNK_ROWS = 512


class Divergence(enum.StrEnum):
    KL = "kl"
    # 1 - sum min(p, q): the probability that a draft token is rejected (2211.17192, corollary 3.6).
    OVERLAP = "overlap"


@dataclass(frozen=True, slots=True)
class Goal:
    indices: torch.Tensor  # [num_rows, top]: indices in the head, or head_size
    probs: torch.Tensor  # [num_rows, top] float32

    def to(self, device: str) -> "Goal":
        return Goal(self.indices.to(device), self.probs.to(device))

    def of(self, rows: torch.Tensor) -> "Goal":
        return Goal(self.indices[rows], self.probs[rows])


@dataclass(frozen=True, slots=True)
class Agreement:
    # Lower bound of sum min(p, q).
    alpha: float
    # Rows with the same likeliest token.
    top_1: float
    num_rows: int

    def __add__(self, other: "Agreement") -> "Agreement":
        return Agreement(self.alpha + other.alpha, self.top_1 + other.top_1, self.num_rows + other.num_rows)

    @property
    def mean_alpha(self) -> float:
        """A lower bound of the acceptance probability."""
        return self.alpha / max(1, self.num_rows)

    @property
    def mean_top_1(self) -> float:
        return self.top_1 / max(1, self.num_rows)


class FrozenHead:
    """The head W; logits are hidden W^T."""

    def __init__(self, weight: torch.Tensor) -> None:
        """weight: [head_size, hidden_size] bfloat16 or float32."""
        self._weight = weight

    def loss(self, hidden: torch.Tensor, goal: Goal, divergence: Divergence) -> torch.Tensor:
        """Returns the mean loss, differentiable in hidden: [num_rows, hidden_size]."""
        loss: torch.Tensor = _HeadLoss.apply(hidden, self._weight, goal, divergence)
        return loss

    @torch.no_grad()
    def agreement(self, hidden: torch.Tensor, goal: Goal) -> Agreement:
        alpha, top_1 = 0.0, 0
        for rows in range(0, hidden.shape[0], CHUNK_ROWS):
            part = slice(rows, rows + CHUNK_ROWS)
            logits = (hidden[part].to(self._weight.dtype) @ self._weight.T).float()
            q = torch.softmax(logits, dim=-1)
            alpha += float(torch.minimum(_at(q, goal.indices[part]), goal.probs[part]).sum())
            top_1 += int((logits.argmax(dim=-1) == goal.indices[part, 0]).sum())
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
            loss, by_logits = _differentiate(logits, goal.indices[part], goal.probs[part], divergence)
            total += loss
            by_hidden[part] = (by_logits @ weight).to(by_hidden.dtype)
        ctx.save_for_backward(by_hidden / hidden.shape[0])
        return torch.tensor(total / hidden.shape[0])

    @staticmethod
    def backward(ctx: Any, *outer: torch.Tensor) -> Any:
        (by_hidden,) = ctx.saved_tensors
        return by_hidden * outer[0], None, None, None


def _differentiate(
    logits: torch.Tensor, indices: torch.Tensor, probs: torch.Tensor, divergence: Divergence
) -> tuple[float, torch.Tensor]:
    """Returns the summed loss and the gradient, [num_rows, head_size]; may overwrite logits."""
    by_overlap = divergence is Divergence.OVERLAP
    if logits.device.type != "cpu":
        losses, by_logits = differentiate_in_torch(logits, indices, probs, by_overlap)
        return float(losses.sum()), by_logits
    found = np.empty(logits.shape[0], np.float32)
    differentiate(bits_of(logits), indices.numpy(), probs.numpy(), by_overlap, found)
    return float(found.sum(dtype=np.float64)), logits


def _at(values: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns values[row, index], 0 outside the head: [num_rows, top]."""
    inside = indices < values.shape[-1]
    return values.gather(1, indices.clamp(max=values.shape[-1] - 1)) * inside
