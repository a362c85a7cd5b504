"""A batch: pending rows of many sequences -> the arrays of one forward."""

from dataclasses import dataclass

import numpy as np

from paceline.engine.arrays import Array


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Consecutive rows of one sequence in a batch."""

    first_token: int
    num_tokens: int
    # Position of the first row in its sequence: the number of tokens in the cache.
    position: int
    # The sequence's block table.
    blocks: list[int]


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of one forward, sequence after sequence; the last rows may be padding."""

    tokens: Array  # [num_tokens] int64
    spans: list[TokenSpan]
    wanted: Array  # [num_wanted] int64: rows whose logits matter

    @property
    def num_tokens(self) -> int:
        return self.tokens.shape[0]


class BatchBuilder:
    """Collects the rows of a batch."""

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._spans: list[TokenSpan] = []
        self._wanted: list[int] = []

    def add(self, tokens: list[int], position: int, blocks: list[int], wanted: list[bool]) -> None:
        """Adds consecutive rows of one sequence. `wanted` says for each row whether its logits matter."""
        first = len(self._tokens)
        self._spans.append(TokenSpan(first, len(tokens), position, blocks))
        self._tokens += tokens
        self._wanted += [first + offset for offset, want in enumerate(wanted) if want]

    @property
    def num_tokens(self) -> int:
        return len(self._tokens)

    def build(self, num_tokens: int) -> Batch:
        """Makes the batch, with padding rows up to `num_tokens` (see `CpuLinear.padded`)."""
        padding = [0] * (num_tokens - self.num_tokens)
        return Batch(np.array(self._tokens + padding), self._spans, np.array(self._wanted, dtype=np.int64))
