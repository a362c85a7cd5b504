"""Training batches: conversations, padded, in an order that a resumed training repeats."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from paceline.distillation.corpus.conversation import Record
from paceline.distillation.training.head import HeadIndex
from paceline.distillation.training.loss import Goal

# Conversations of similar length are put together within windows of this many batches.
WINDOW_BATCHES = 16


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Conversations, padded on the right, and the target's distributions at the tokens that it wrote."""

    tokens: torch.Tensor  # [num_conversations, longest] int64
    # Indices into the flattened tokens: the token before each token that the target wrote.
    rows: torch.Tensor  # [num_rows] int64
    goal: Goal

    def to(self, device: str) -> "TrainingBatch":
        return TrainingBatch(self.tokens.to(device), self.rows.to(device), self.goal.to(device))


def make_batch(records: Sequence[Record], index: HeadIndex) -> TrainingBatch:
    longest = max(len(record.tokens) for record in records) - 1
    tokens = np.zeros((len(records), longest), np.int64)
    rows = []
    for row, record in enumerate(records):
        # The last token is only predicted: no token follows it.
        tokens[row, : len(record.tokens) - 1] = record.tokens[:-1]
        rows.append(row * longest + record.written.astype(np.int64) - 1)
    ids = torch.from_numpy(np.concatenate([record.top_ids for record in records]).astype(np.int64))
    logprobs = torch.from_numpy(np.concatenate([record.top_logprobs for record in records]).astype(np.float32))
    goal = Goal(index.indices_of(ids), logprobs.exp())
    return TrainingBatch(torch.from_numpy(tokens), torch.from_numpy(np.concatenate(rows)), goal)


def shuffled(records: Sequence[Record], batch_tokens: int, seed: int) -> Iterator[list[Record]]:
    """One pass over `records`, in batches of up to `batch_tokens` tokens with padding.

    A batch has conversations of similar length.
    """
    random = np.random.default_rng(seed)
    order = random.permutation(len(records))
    mean = max(1.0, float(np.mean([len(record.tokens) for record in records])))
    window = max(1, int(WINDOW_BATCHES * batch_tokens / mean))
    for first in range(0, len(order), window):
        near = sorted(order[first : first + window], key=lambda at: len(records[at].tokens))
        batches: list[list[Record]] = [[]]
        for at in near:
            if (len(batches[-1]) + 1) * len(records[at].tokens) > batch_tokens and batches[-1]:
                batches.append([])
            batches[-1].append(records[at])
        for number in random.permutation(len(batches)):
            yield batches[number]
