"""A batch: the pending tokens of many sequences as the arrays of one forward pass."""

from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import NamedTuple

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.cache.state_pool import StateSpan


class TokenSpan(NamedTuple):
    first_token: int
    num_tokens: int
    # Position of the first token: the number of tokens in the cache.
    position: int
    # The block table.
    blocks: list[int]
    # Only if the model has recurrent layers.
    state: StateSpan | None = None


@dataclass(frozen=True)
class Batch:
    """The tokens of one forward pass, sequence by sequence, with padding at the end."""

    tokens: Array  # [num_tokens] int64
    spans: list[TokenSpan]
    wanted: Array  # [num_wanted] int64: tokens whose logits matter

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[0]

    @cached_property
    def extents(self) -> Array:
        """Each span's first token, number of tokens, position and index: [num_spans, 4] int64."""
        return np.array([(*span[:3], index) for index, span in enumerate(self.spans)])


class BatchBuilder:
    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._spans: list[TokenSpan] = []
        self._wanted: list[int] = []

    def add(
        self, tokens: list[int], position: int, blocks: list[int], wanted: list[bool], state: StateSpan | None = None
    ) -> None:
        """Adds consecutive tokens of one sequence. `wanted` says for each whether its logits matter."""
        first = len(self._tokens)
        self._spans.append(TokenSpan(first, len(tokens), position, blocks, state))
        self._tokens += tokens
        self._wanted += compress(range(first, first + len(wanted)), wanted)

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def build(self, num_tokens: int) -> Batch:
        """Builds the batch, padded to `num_tokens` (see `CpuLinear.padded`)."""
        padding = [0] * (num_tokens - self.num_tokens)
        return Batch(np.array(self._tokens + padding), self._spans, np.array(self._wanted, dtype=np.int64))
