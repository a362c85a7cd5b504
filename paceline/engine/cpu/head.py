"""Embedding and head. A draft's head may cover only the most frequent tokens."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.cpu.linear import CpuLinear
from paceline.engine.models.model_config import UNKNOWN_LOGIT
from paceline.engine.sampling.specs import ConfidentSample, Sample, TruncatedSample
from paceline.engine.scheduling.job import Job


class EmbeddingRows(Protocol):
    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        """ids: [num_rows] int64 -> [num_rows, hidden_size] float32, or bfloat16 as uint16."""
        ...


class DenseRows:
    def __init__(self, weight: Array) -> None:
        self._weight = weight  # [vocab_size, hidden_size]

    def rows(self, ids: Array, dtype: np.dtype[Any]) -> Array:
        assert dtype == self._weight.dtype, "the model has one dtype"
        found: Array = self._weight[ids]
        return found


class Embedding:
    """Vectors of tokens and of masks, whose ids follow the tokens' (see `models.shapes`)."""

    def __init__(
        self, tokens: EmbeddingRows, masks: Array | None, vocab_size: int, dtype: np.dtype[Any], scale: float
    ) -> None:
        """masks: [num_masks, hidden_size] or None; `scale`: factor of all vectors."""
        self.dtype = dtype
        self._scale = scale
        self._tokens = tokens
        self._masks = masks
        self._vocab_size = vocab_size

    def __call__(self, ids: Array) -> Array:
        """ids: [num_rows] -> [num_rows, hidden_size]."""
        found = self._unscaled(ids)
        if self._scale == 1:
            return found
        # In the model's dtype, as transformers multiplies.
        rows = tensor_of(found)
        return bits_of(rows * torch.tensor(self._scale, dtype=rows.dtype))

    def _unscaled(self, ids: Array) -> Array:
        if self._masks is None or (is_token := ids < self._vocab_size).all():
            return self._tokens.rows(ids, self.dtype)
        found = np.empty((ids.size, self._masks.shape[1]), self.dtype)
        found[is_token] = self._tokens.rows(ids[is_token], self.dtype)
        found[~is_token] = self._masks[ids[~is_token] - self._vocab_size]
        return found


class Head:
    def __init__(self, linear: CpuLinear, ids: Array | None, vocab_size: int) -> None:
        """`linear` has weights [head_size, hidden_size].

        `ids`: [head_size], the token id of each weight row; None if row i is token i.
        """
        self.linear = linear
        self.ids = ids
        self._vocab_size = vocab_size

    @property
    def is_full_vocab(self) -> bool:
        return self.ids is None

    def padded(self, num_rows: int) -> int:
        return self.linear.padded(num_rows)

    def hold(self, jobs: Sequence[tuple[Job, int]]) -> None:
        """Prepares the next product. `jobs`: for each of its rows the job, and the job's pending row."""

    def __call__(self, x: Array) -> torch.Tensor:
        """x: [num_rows, hidden_size], normed -> [num_rows, head_size] float32."""
        return tensor_of(self.linear(x)).float()

    def to_full_vocab(self, known: torch.Tensor, first: int = 0) -> torch.Tensor:
        """known: the last product's rows from `first` on, [num_rows, head_size] -> [num_rows, vocab_size]."""
        if self.ids is None:
            return known
        logits = np.full((known.shape[0], self._vocab_size), UNKNOWN_LOGIT, np.float32)
        logits[:, self.ids] = known.numpy()
        return torch.from_numpy(logits)

    def with_ids(self, samples: Sequence[Sample]) -> list[Sample]:
        """Replaces indices of the head's logits by token ids in samples."""
        assert self.ids is not None, "indices are ids"
        return [_with_ids(each, self.ids) for each in samples]


def _with_ids(sample: Sample, ids: Array) -> Sample:
    if isinstance(sample, TruncatedSample):
        return replace(sample, token=int(ids[sample.token]), support=ids[sample.support].astype(np.int64))
    if isinstance(sample, ConfidentSample):
        return replace(sample, token=int(ids[sample.token]))
    assert isinstance(sample, int), "other specs need token ids"
    return int(ids[sample])
