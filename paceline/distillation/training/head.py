"""The draft's head: the target's own, frozen, with only the tokens that the target's text often contains.

Rare tokens cost as much as frequent ones at every step, and are almost never drafted. Without them the output stays
correct: for tokens where q is zero, nothing is proposed.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.distillation.corpus.conversation import Record

ALL = 0


def frequent_ids(records: Sequence[Record], vocab_size: int, size: int) -> NDArray[np.int64]:
    """The ids of the `size` tokens that the target wrote most often, in increasing order: [size].

    With size ALL all ids: [vocab_size].
    """
    if size == ALL or size >= vocab_size:
        return np.arange(vocab_size)
    counts = np.zeros(vocab_size, np.int64)
    for record in records:
        # Also count the likeliest token at each position: a small corpus alone has too few different tokens.
        np.add.at(counts, record.top_ids[:, 0], 1)
        counts += np.bincount(record.tokens[record.written], minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


class HeadIndex:
    """Maps token ids to indices in the head. Tokens that the head does not have get the index `absent`."""

    def __init__(self, ids: NDArray[np.int64], vocab_size: int) -> None:
        self.absent = len(ids)
        self._indices = torch.full((vocab_size,), self.absent)
        self._indices[torch.from_numpy(ids)] = torch.arange(len(ids))

    def indices_of(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Indices in the head, of the same shape as `token_ids`."""
        return self._indices[token_ids]
