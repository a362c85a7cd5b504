"""Scratch memory for kernels, kept from step to step: getting new pages would take longer than the kernels' work."""

import numpy as np

from paceline.engine.arrays import Array


class Scratch:
    """An array that grows when needed. Only one thread may use it."""

    def __init__(self) -> None:
        self._kept = np.empty((0, 0), np.float32)

    def like(self, logits: Array) -> Array:
        """A float32 array of the shape of logits: [num_rows, vocab_size], with undefined values."""
        num_rows, width = logits.shape
        if self._kept.shape[0] < num_rows or self._kept.shape[1] != width:
            self._kept = np.empty((num_rows, width), np.float32)
        return self._kept[:num_rows]
