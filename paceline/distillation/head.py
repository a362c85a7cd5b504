"""The draft's head: the target's own, frozen, over the tokens that its text is made of.

Rare tokens cost as much as frequent ones at every step and are hardly ever drafted. Leaving them out changes no
output: where q is zero, nothing is proposed.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.distillation.conversation import Record

ALL = 0


def frequent_ids(records: Sequence[Record], vocab_size: int, size: int) -> NDArray[np.int64]:
    """The `size` tokens that the target wrote most often, or all with size ALL, in increasing order: [size]."""
    if size == ALL or size >= vocab_size:
        return np.arange(vocab_size)
    counts = np.zeros(vocab_size, np.int64)
    for record in records:
        # What the target might as well have said counts too, or a small corpus would know too few tokens.
        np.add.at(counts, record.top_ids[:, 0], 1)
        counts += np.bincount(record.tokens[record.written], minlength=vocab_size)
    return np.sort(np.argsort(-counts, kind="stable")[:size])


class HeadIndex:
    """From token ids to places in the head; tokens that are not there get the place `absent`."""

    def __init__(self, ids: NDArray[np.int64], vocab_size: int) -> None:
        self.absent = len(ids)
        self._places = torch.full((vocab_size,), self.absent)
        self._places[torch.from_numpy(ids)] = torch.arange(len(ids))

    def places(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The same shape as `token_ids`."""
        return self._places[token_ids]
