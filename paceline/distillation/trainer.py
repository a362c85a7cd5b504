"""Trains a draft model on text and distributions of the target (2211.17192, section 3)."""

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from paceline.distillation.batches import Objective, shuffled
from paceline.distillation.conversations import Record
from paceline.distillation.loss import Agreement, Divergence, FrozenHead


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on tokens and seconds, whichever is reached first. Interrupted runs count."""

    tokens: float = math.inf
    seconds: float = math.inf

    def share(self, tokens: int, seconds: float) -> float:
        return min(1.0, max(tokens / self.tokens, seconds / self.seconds))


WARM_UP_SHARE = 0.03
# Final learning rate / peak learning rate.
FINAL_SHARE = 0.05
MAX_GRADIENT_NORM = 1.0


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    # Tokens that the target wrote, including repeats, or training time.
    budget: Budget
    # Small batches learn more from the same number of tokens.
    batch_tokens: int = 1024
    learning_rate: float = 1e-3
    divergence: Divergence = Divergence.KL
    # Share of the budget after which the loss is the overlap.
    overlap_from: float = math.inf
    seed: int = 0

    def divergence_at(self, share: float) -> Divergence:
        return Divergence.OVERLAP if share >= self.overlap_from else self.divergence

    def rate(self, share: float) -> float:
        """Returns the learning rate: linear warm-up, then cosine decay."""
        if share < WARM_UP_SHARE:
            return self.learning_rate * (share + 1e-3) / WARM_UP_SHARE
        fall = 0.5 * (1 + math.cos(math.pi * (share - WARM_UP_SHARE) / (1 - WARM_UP_SHARE)))
        return self.learning_rate * (FINAL_SHARE + (1 - FINAL_SHARE) * fall)


class Trainer:
    """Trains one draft model. Its state can be saved after any step."""

    def __init__(
        self, backbone: nn.Module, head: FrozenHead, objective: Objective, plan: TrainingPlan, device: str = "cpu"
    ) -> None:
        self.backbone = backbone
        self.objective = objective
        self._device = device
        self.seen = 0
        self.spent_s = 0.0
        self._head = head
        self._plan = plan
        self._epoch = 0
        # Batches of this epoch that were used.
        self._used = 0
        parameters = [parameter for parameter in backbone.parameters() if parameter.requires_grad]
        self._optimizer = torch.optim.AdamW(
            parameters, lr=plan.learning_rate, betas=(0.9, 0.98), weight_decay=0.01, fused=True
        )
        self._parameters = parameters

    @property
    def share(self) -> float:
        return self._plan.budget.share(self.seen, self.spent_s)

    def run(self, records: Sequence[Record]) -> Iterator[float]:
        """Trains until the budget is used. Yields each step's mean loss."""
        assert records, "there must be something to learn from"
        while self.share < 1:
            batches = shuffled(records, self._plan.batch_tokens, self._plan.seed + self._epoch)
            for batch in itertools.islice(batches, self._used, None):
                loss = self.step(batch)
                self._used += 1
                yield loss
                if self.share >= 1:
                    return
            self._epoch, self._used = self._epoch + 1, 0

    def step(self, records: Sequence[Record]) -> float:
        started_s = time.monotonic()
        learning = self.objective.read(self.backbone, records, self._plan.seed + self.seen)
        loss = self._head.loss(learning.hidden, learning.goal, self._plan.divergence_at(self.share))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM)
        for group in self._optimizer.param_groups:
            group["lr"] = self._plan.rate(self.share)
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        self.seen += sum(record.num_written for record in records)
        self.spent_s += time.monotonic() - started_s
        return float(loss.detach())

    @torch.no_grad()
    def agreement(self, records: Sequence[Record]) -> list[Agreement]:
        totals = [Agreement(0.0, 0, 0)] * self.objective.num_depths
        for number, part in enumerate(shuffled(records, self._plan.batch_tokens, 0)):
            learning = self.objective.read(self.backbone, part, number)
            for depth in range(self.objective.num_depths):
                rows = (learning.depths == depth).nonzero().squeeze(1)
                totals[depth] += self._head.agreement(learning.hidden[rows], learning.goal.of(rows))
        return totals

    def save(self, path: Path) -> None:
        state = {
            "backbone": {name: value for name, value in self.backbone.state_dict().items() if "embed" not in name},
            "optimizer": self._optimizer.state_dict(),
            "seen": self.seen, "spent_s": self.spent_s, "epoch": self._epoch, "used": self._used,
        }  # fmt: skip
        scratch = path.with_suffix(".part")
        torch.save(state, scratch)
        scratch.rename(path)

    def load(self, path: Path) -> None:
        state = torch.load(path, weights_only=True, map_location=self._device)
        self.backbone.load_state_dict(state["backbone"], strict=False)
        self._optimizer.load_state_dict(state["optimizer"])
        self.seen, self.spent_s = state["seen"], state["spent_s"]
        self._epoch, self._used = state["epoch"], state["used"]
