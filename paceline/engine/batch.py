"""Pending rows of many sequences -> the tensors of one forward."""

from dataclasses import dataclass

import torch

from paceline.engine.attention import Span


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward, sequence after sequence; the last rows may be padding."""

    tokens: torch.Tensor  # [num_rows]
    spans: list[Span]
    wanted: torch.Tensor  # [num_wanted] rows whose logits matter

    @property
    def num_rows(self) -> int:
        return self.tokens.shape[0]


class BatchBuilder:
    """Gathers rows; `build` makes the tensors."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._spans: list[Span] = []
        self._wanted: list[int] = []

    def add(self, tokens: list[int], position: int, blocks: list[int], wanted: list[bool]) -> None:
        """Adds consecutive rows of one sequence; `wanted` says for each whether its logits matter."""
        first = len(self._tokens)
        self._spans.append(Span(first, len(tokens), position, blocks))
        self._tokens += tokens
        self._wanted += [first + offset for offset, want in enumerate(wanted) if want]

    @property
    def num_rows(self) -> int:
        return len(self._tokens)

    def build(self, num_rows: int, device: torch.device) -> Batch:
        """Pads to `num_rows` (see `linear.Linear.padded`)."""
        padding = [0] * (num_rows - self.num_rows)
        return Batch(
            tokens=torch.tensor(self._tokens + padding, device=device),
            spans=self._spans,
            wanted=torch.tensor(self._wanted, dtype=torch.int64, device=device),
        )
