"""From hidden states to logits; a draft's head may know but the most frequent tokens."""

import numpy as np
import torch

from paceline.engine.kernels.scalars import Array, tensor_of
from paceline.engine.linear import make_linear

# The logit of a token that the head does not know: finite, so that a request that allows no other tokens still
# has a distribution to draw from.
UNKNOWN = -1e9


class Head:
    """Logits over the whole vocabulary."""

    def __init__(self, weight: torch.Tensor, ids: Array | None, vocab_size: int, quantization: str) -> None:
        """weight: [head_size, hidden_size]; `ids`: whose rows these are, [head_size], None for all in order."""
        self.linear = make_linear(weight, None, quantization)
        self._ids = ids
        self._vocab_size = vocab_size

    def padded(self, num_rows: int) -> int:
        """How many rows to run for so many."""
        return self.linear.padded(num_rows)

    def __call__(self, x: Array) -> torch.Tensor:
        """x: [num_rows, hidden_size], normed -> [num_rows, vocab_size] float32."""
        known = tensor_of(self.linear(x)).float()
        if self._ids is None:
            return known
        logits = np.full((known.shape[0], self._vocab_size), UNKNOWN, np.float32)
        logits[:, self._ids] = known.numpy()
        return torch.from_numpy(logits)
