"""The embedding on a CPU: a token's vector.

Where the head has the same weights, the vectors are read from those that it multiplies with: nothing is kept twice.
"""

from typing import Any, Protocol

import numpy as np

from paceline.engine.arrays import Array


class Rows(Protocol):
    """A matrix whose rows can be read."""

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        """ids: [num_rows] int64 -> [num_rows, hidden_size] of the dtype, float32 or bfloat16 as uint16."""
        ...


class DenseRows:
    """A matrix as it is."""

    def __init__(self, weight: Array) -> None:
        self._weight = weight  # [vocab_size, hidden_size]

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        assert dtype == self._weight.dtype, "the model has one dtype"
        found: Array = self._weight[ids]
        return found


class Embedding:
    """Vectors of tokens, and of masks, whose ids come behind those of the tokens (see `models.masks`)."""

    def __init__(self, tokens: Rows, masks: Array | None, vocab_size: int, dtype: np.dtype[Any]) -> None:
        """masks: [num_masks, hidden_size] of the dtype, or None."""
        self.dtype = dtype
        self._tokens = tokens
        self._masks = masks
        self._vocab_size = vocab_size

    def __call__(self, ids: Array) -> Array:
        """ids: [num_rows] -> [num_rows, hidden_size]."""
        if self._masks is None or (is_token := ids < self._vocab_size).all():
            return self._tokens.rows(ids, self.dtype)
        found = np.empty((ids.size, self._masks.shape[1]), self.dtype)
        found[is_token] = self._tokens.rows(ids[is_token], self.dtype)
        found[~is_token] = self._masks[ids[~is_token] - self._vocab_size]
        return found
