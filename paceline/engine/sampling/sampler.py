"""A batch of logits and draw specifications -> small results, computed where the logits are.

Each row's result depends on that row alone, so that a draw does not change with what is
drawn beside it: also who makes a draw is decided by the row and the draw.
"""

from collections.abc import Sequence as Seq

import torch

from paceline.engine.cpu.sampling.gumbel_sampler import Tempered
from paceline.engine.cpu.sampling.top_k_sampler import Ranked
from paceline.engine.sampling.backends import Way
from paceline.engine.sampling.logits_processors import adjust
from paceline.engine.sampling.specs import Draw, Drawn
from paceline.engine.sampling.torch_sampler import TensorDraws


class Sampler:
    """Has each draw made by the first way that takes it, the fastest ones first."""

    def __init__(self) -> None:
        self._ways: tuple[Way, ...] = (Tempered(), Ranked(), TensorDraws())

    def sample(self, logits: torch.Tensor, draws: Seq[Draw]) -> list[Drawn]:
        """logits: [num_draws, vocab_size] float32, changed in place to those drawn from."""
        adjust(logits, draws)
        results: list[Drawn] = [None] * len(draws)
        left = list(range(len(draws)))
        for way in self._ways:
            rows = [row for row in left if way.takes(logits, draws[row])]
            if rows:
                chosen = logits if len(rows) == len(draws) else logits[rows]
                for row, drawn in zip(rows, way.draw(chosen, [draws[row] for row in rows]), strict=True):
                    results[row] = drawn
            left = [row for row in left if results[row] is None]
            if not left:
                break
        return results
