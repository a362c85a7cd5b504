"""What the ways to make draws have in common (see `sampler`)."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch

from paceline.engine.sampling.specs import Draw, Drawn

# Draws of one kind, from as many rows of logits: [num_draws, vocab_size].
Maker = Callable[[torch.Tensor, list[Any]], Seq[Drawn]]


class Way(Protocol):
    """One way to make draws."""

    def takes(self, logits: torch.Tensor, draw: Draw) -> bool:
        """Whether it may make this draw from such logits."""
        ...

    def draw(self, logits: torch.Tensor, draws: Seq[Any]) -> Seq[Drawn]:
        """logits: [num_draws, vocab_size] float32. None for a draw that must be left to the next way."""
        ...


def draw_by_kind(makers: Mapping[type[Draw], Maker], logits: torch.Tensor, draws: Seq[Draw]) -> list[Drawn]:
    """Each kind's draws together."""
    results: list[Drawn] = [None] * len(draws)
    for kind, make in makers.items():
        rows = [row for row, draw in enumerate(draws) if type(draw) is kind]
        if rows:
            chosen = logits if len(rows) == len(draws) else logits[rows]
            for row, drawn in zip(rows, make(chosen, [draws[row] for row in rows]), strict=True):
                results[row] = drawn
    return results
