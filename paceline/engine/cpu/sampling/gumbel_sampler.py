"""Draws by temperature alone, on a CPU: by kernels, in a tenth of the library's time."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from paceline.engine.cpu.kernels.choosing import PART, choose_by_gumbel, choose_outside
from paceline.engine.cpu.kernels.scalars import Array
from paceline.engine.cpu.sampling.scratch import Scratch
from paceline.engine.sampling.backends import Maker, draw_by_kind
from paceline.engine.sampling.specs import Draw, Drawn, FromOutside, GumbelMax, Outside


class Tempered:
    """Gumbel-max, and draws from outside a support."""

    def __init__(self) -> None:
        self._scratch = Scratch()

    @staticmethod
    def takes(logits: torch.Tensor, draw: Draw) -> bool:
        """Whether it is such a draw."""
        is_known = isinstance(draw, GumbelMax | FromOutside)
        return is_known and logits.device.type == "cpu" and draw.sampling.is_only_tempered

    def draw(self, logits: torch.Tensor, draws: Seq[Draw]) -> list[Drawn]:
        """logits: [num_draws, vocab_size] float32."""
        makers: dict[type[Draw], Maker] = {GumbelMax: self._gumbel_max, FromOutside: self._from_outside}
        return draw_by_kind(makers, logits, draws)

    def _gumbel_max(self, logits: torch.Tensor, draws: Seq[Any]) -> Seq[Drawn]:
        tokens = np.empty(len(draws), np.int64)
        keys = np.array([draw.key for draw in draws], np.uint64)
        rows = logits.numpy()
        choose_by_gumbel(rows, _temperatures(draws), keys, self._scratch.like(rows), tokens)
        chosen: list[int] = tokens.tolist()
        return chosen

    def _from_outside(self, logits: torch.Tensor, draws: Seq[Any]) -> Seq[Drawn]:
        num_rows, vocab_size = logits.shape
        sizes = [len(draw.support) for draw in draws]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        supports = np.concatenate([draw.support for draw in draws])
        uniforms = np.array([draw.uniform for draw in draws])
        inside, sums = np.empty(len(supports), np.float32), np.empty((num_rows, -(-vocab_size // PART)))
        tokens, masses = np.empty(num_rows, np.int64), np.empty(num_rows)
        rows = logits.numpy()
        choose_outside(
            rows, _temperatures(draws), supports, starts, uniforms, self._scratch.like(rows), sums,
            inside, tokens, masses,
        )  # fmt: skip
        parts = np.split(inside, starts[1:-1])
        return [Outside(*each) for each in zip(tokens.tolist(), masses.tolist(), parts, strict=True)]


def _temperatures(draws: Seq[Draw]) -> Array:
    return np.array([draw.sampling.temperature for draw in draws])
