"""Draws by temperature alone, on a CPU: by kernels, in a tenth of the library's time."""

from collections.abc import Sequence as Seq

import numpy as np
import torch

from paceline.engine.draws import Draw, FromOutside, GumbelMax, Outside
from paceline.engine.kernels.choosing import PART, choose_by_gumbel, choose_outside
from paceline.engine.kernels.scalars import Array


class Tempered:
    """Keeps the memory that the kernels work in: pages that are new at every step would cost more than the draws."""

    def __init__(self) -> None:
        self._scratch = np.empty((0, 0), np.float32)

    @staticmethod
    def takes(logits: torch.Tensor, draw: Draw) -> bool:
        """Whether it is such a draw."""
        is_known = isinstance(draw, GumbelMax | FromOutside)
        return is_known and logits.device.type == "cpu" and draw.sampling.is_only_tempered

    def gumbel_max(self, logits: torch.Tensor, draws: Seq[GumbelMax]) -> list[int]:
        """See `Sampler`. logits: [num_draws, vocab_size] float32."""
        tokens = np.empty(len(draws), np.int64)
        keys = np.array([draw.key for draw in draws], np.uint64)
        choose_by_gumbel(logits.numpy(), _temperatures(draws), keys, self._like(logits), tokens)
        return tokens.tolist()

    def from_outside(self, logits: torch.Tensor, draws: Seq[FromOutside]) -> list[Outside]:
        """See `Sampler`. logits: [num_draws, vocab_size] float32."""
        num_rows, vocab_size = logits.shape
        sizes = [len(draw.support) for draw in draws]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        supports = np.concatenate([draw.support for draw in draws])
        uniforms = np.array([draw.uniform for draw in draws])
        inside, sums = np.empty(len(supports), np.float32), np.empty((num_rows, -(-vocab_size // PART)))
        tokens, masses = np.empty(num_rows, np.int64), np.empty(num_rows)
        choose_outside(
            logits.numpy(), _temperatures(draws), supports, starts, uniforms, self._like(logits), sums,
            inside, tokens, masses,
        )  # fmt: skip
        parts = np.split(inside, starts[1:-1])
        return [Outside(*each) for each in zip(tokens.tolist(), masses.tolist(), parts, strict=True)]

    def _like(self, logits: torch.Tensor) -> Array:
        num_rows, vocab_size = logits.shape
        if self._scratch.shape[0] < num_rows or self._scratch.shape[1] != vocab_size:
            self._scratch = np.empty((num_rows, vocab_size), np.float32)
        return self._scratch[:num_rows]


def _temperatures(draws: Seq[Draw]) -> Array:
    return np.array([draw.sampling.temperature for draw in draws])
