"""The objective of a draft head: chains of tokens from every position.

Without chains from the first step on, a head would draft one token well and none behind it: a chain's later tokens read the
head's own outputs in place of the target's hidden states (EAGLE-3, 2503.01840, training-time test).
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch.nn import functional

from paceline.distillation.batches import Learning, product_dtype
from paceline.distillation.conversations import Record
from paceline.distillation.draft_head import DraftHead
from paceline.distillation.loss import Goal, HeadIndex


class Chains:
    def __init__(self, embedding: torch.Tensor, index: HeadIndex, depth: int, device: str = "cpu") -> None:
        """embedding: [vocab_size, hidden_size], the target's."""
        self.num_depths, self._embedding, self._index, self._device = depth, embedding, index, device

    def read(self, backbone: DraftHead, records: Sequence[Record], seed: int) -> Learning:
        """Position t of a record reads the target's states at t - 1 and the token at t, and learns the token after it."""
        longest = max(len(record.tokens) for record in records) - 2
        tokens = np.zeros((len(records), longest), np.int64)
        states = np.zeros((len(records), longest, *_states(records[0]).shape[1:]), np.uint16)
        for row, record in enumerate(records):
            end = len(record.tokens) - 2
            tokens[row, :end], states[row, :end] = record.tokens[1:-1], _states(record)[:end]
        # The first two tokens are never written by the target: a conversation begins with its frame.
        learning = [row * longest + record.written.astype(np.int64) - 2 for row, record in enumerate(records)]
        rows = torch.from_numpy(np.concatenate(learning)).to(self._device)
        ids = torch.from_numpy(np.concatenate([record.top_ids for record in records]).astype(np.int64))
        logprobs = torch.from_numpy(np.concatenate([record.top_logprobs for record in records]).astype(np.float32))
        embedded = functional.embedding(torch.from_numpy(tokens), self._embedding).to(self._device)
        read = torch.from_numpy(states).view(torch.bfloat16).to(self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=product_dtype(self._device) is torch.bfloat16):
            found = backbone(embedded, read, self.num_depths)
        goal = Goal(self._index.indices_of(ids), logprobs.exp()).to(self._device)
        repeated = Goal(goal.indices.repeat(len(found), 1), goal.probs.repeat(len(found), 1))
        depths = torch.arange(len(found), device=self._device).repeat_interleave(len(rows))
        return Learning(torch.cat([each.flatten(0, 1)[rows] for each in found]), repeated, depths)


def _states(record: Record) -> "np.ndarray[tuple[int, ...], np.dtype[np.uint16]]":
    assert record.states is not None, "a head learns from a corpus with hidden states"
    return record.states
