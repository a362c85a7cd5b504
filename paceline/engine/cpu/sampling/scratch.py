"""Memory that kernels work in, kept from step to step: pages that are new each time would cost more than the work."""

import numpy as np

from paceline.engine.arrays import Array


class Scratch:
    """Belongs to one thread."""

    def __init__(self) -> None:
        self._kept = np.empty((0, 0), np.float32)

    def like(self, logits: Array) -> Array:
        """As many rows of as many float32, with anything in them."""
        num_rows, width = logits.shape
        if self._kept.shape[0] < num_rows or self._kept.shape[1] != width:
            self._kept = np.empty((num_rows, width), np.float32)
        return self._kept[:num_rows]
