"""Training batches, and the objectives that learn from them.

`NextToken` teaches drafting step by step, `MaskedTokens` several tokens in one forward pass (PARD, 2504.18583, section 3):
some tokens of the text are anchors, followed by mask tokens. Mask token j sees the text up to its anchor and the mask
tokens before it, and learns the target's distribution j + 2 positions after the anchor. (The paper gives each token
mask tokens and drops most of them.)

    text      a  b  c  d  e  f
    c, an anchor, learns d
      mask 0 at d's position learns e, and sees a b c
      mask 1 at e's position learns f, and sees a b c and mask 0
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel

from paceline.distillation.conversations import Record
from paceline.distillation.loss import Goal, HeadIndex

# Conversations are sorted by length within windows of this many batches.
WINDOW_BATCHES = 16


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Conversations, right-padded, with the target's distributions at the tokens that it wrote."""

    tokens: torch.Tensor  # [num_conversations, longest] int64
    # Indices into the flattened tokens, of the tokens before those that the target wrote.
    rows: torch.Tensor  # [num_rows] int64
    goal: Goal

    def to(self, device: str) -> "TrainingBatch":
        return TrainingBatch(self.tokens.to(device), self.rows.to(device), self.goal.to(device))


def make_batch(records: Sequence[Record], index: HeadIndex) -> TrainingBatch:
    longest = max(len(record.tokens) for record in records) - 1
    tokens = np.zeros((len(records), longest), np.int64)
    rows = []
    for row, record in enumerate(records):
        # Nothing follows the last token.
        tokens[row, : len(record.tokens) - 1] = record.tokens[:-1]
        rows.append(row * longest + record.written.astype(np.int64) - 1)
    ids = torch.from_numpy(np.concatenate([record.top_ids for record in records]).astype(np.int64))
    logprobs = torch.from_numpy(np.concatenate([record.top_logprobs for record in records]).astype(np.float32))
    goal = Goal(index.indices_of(ids), logprobs.exp())
    return TrainingBatch(torch.from_numpy(tokens), torch.from_numpy(np.concatenate(rows)), goal)


def shuffled(records: Sequence[Record], batch_tokens: int, seed: int) -> Iterator[list[Record]]:
    """Yields one pass in batches of similar length, up to `batch_tokens` tokens with padding."""
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


@dataclass(frozen=True, slots=True)
class Masks:
    per_anchor: int
    anchor_share: float


@dataclass(frozen=True, slots=True)
class MaskedBatch:
    # Mask token j has the id vocab_size + j.
    tokens: torch.Tensor  # [num_conversations, longest] int64
    positions: torch.Tensor  # [num_conversations, longest] int64
    # The attention mask: which tokens (last axis) a token sees.
    sees: torch.Tensor  # [num_conversations, 1, longest, longest] bool
    # Indices into the flattened tokens, of those that learn.
    rows: torch.Tensor  # [num_learning] int64
    # 0 for tokens of the text, j + 1 for mask token j.
    depths: torch.Tensor  # [num_learning] int64
    goal: Goal

    def to(self, device: str) -> "MaskedBatch":
        return MaskedBatch(
            self.tokens.to(device),
            self.positions.to(device),
            self.sees.to(device),
            self.rows.to(device),
            self.depths.to(device),
            self.goal.to(device),
        )


@dataclass(frozen=True, slots=True)
class _Laid:
    tokens: NDArray[np.int64]  # [num_tokens]
    positions: NDArray[np.int64]  # [num_tokens]
    # How many tokens of the text each token sees, and the first mask token that it sees.
    num_text: NDArray[np.int64]  # [num_tokens]
    first_mask: NDArray[np.int64]  # [num_tokens]
    # Tokens that learn, their depths, and which of the record's distributions they learn.
    rows: NDArray[np.int64]
    depths: NDArray[np.int64]
    goals: NDArray[np.int64]


def anchors_of(record: Record, masks: Masks, random: np.random.Generator) -> NDArray[np.int64]:
    # An anchor needs a token for at least one mask token to learn.
    places = record.written[record.written < len(record.tokens) - 1].astype(np.int64) - 1
    return np.sort(random.choice(places, max(1, round(masks.anchor_share * len(places))), replace=False))


def lay(record: Record, anchors: NDArray[np.int64], num_masks: int, vocab_size: int) -> _Laid:
    """Lays out the text without its last token, and each anchor's mask tokens."""
    num_text = len(record.tokens) - 1
    index = np.full(num_text + 1, -1)
    index[record.written] = np.arange(record.num_written)
    depth = np.tile(np.arange(num_masks), len(anchors))
    position = np.repeat(anchors, num_masks) + 1 + depth
    # Each learns the token after its position.
    inside = position < num_text
    depth, position = depth[inside], position[inside]
    anchor = position - 1 - depth
    own = num_text + np.arange(len(depth))
    positions = np.concatenate([np.arange(num_text), position])
    goals = index[positions + 1]
    learning = np.flatnonzero(goals >= 0)
    depths = np.concatenate([np.zeros(num_text, np.int64), depth + 1])
    return _Laid(
        tokens=np.concatenate([record.tokens[:-1].astype(np.int64), vocab_size + depth]),
        positions=positions,
        num_text=np.concatenate([np.arange(num_text) + 1, anchor + 1]),
        # The text sees no mask tokens.
        first_mask=np.concatenate([np.full(num_text, num_text + len(depth)), own - depth]),
        rows=learning,
        depths=depths[learning],
        goals=goals[learning],
    )


def make_masked_batch(
    records: Sequence[Record], masks: Masks, index: HeadIndex, vocab_size: int, random: np.random.Generator
) -> MaskedBatch:
    laid = [lay(record, anchors_of(record, masks, random), masks.per_anchor, vocab_size) for record in records]
    longest = max(len(each.tokens) for each in laid)
    tokens, positions = np.zeros((2, len(laid), longest), np.int64)
    sees = np.zeros((len(laid), 1, longest, longest), bool)
    column = np.arange(longest)
    for number, each in enumerate(laid):
        num_rows = len(each.tokens)
        tokens[number, :num_rows], positions[number, :num_rows] = each.tokens, each.positions
        row = np.arange(num_rows)[:, None]
        masks_seen = (column >= each.first_mask[:, None]) & (column <= row)
        sees[number, 0, :num_rows] = (column < each.num_text[:, None]) | masks_seen
    # Padding sees itself, since the softmax over nothing is undefined.
    sees[:, 0, column, column] = True
    ids = np.concatenate([record.top_ids[each.goals] for record, each in zip(records, laid, strict=True)])
    logprobs = np.concatenate([record.top_logprobs[each.goals] for record, each in zip(records, laid, strict=True)])
    goal = Goal(
        index.indices_of(torch.from_numpy(ids.astype(np.int64))), torch.from_numpy(logprobs.astype(np.float32)).exp()
    )
    return MaskedBatch(
        torch.from_numpy(tokens),
        torch.from_numpy(positions),
        torch.from_numpy(sees),
        torch.from_numpy(np.concatenate([number * longest + each.rows for number, each in enumerate(laid)])),
        torch.from_numpy(np.concatenate([each.depths for each in laid])),
        goal,
    )


@dataclass(frozen=True, slots=True)
class Learning:
    hidden: torch.Tensor  # [num_rows, hidden_size]
    goal: Goal
    # How many unknown tokens lie between a row and its goal: 0 for the next token.
    depths: torch.Tensor  # [num_rows] int64


def product_dtype(device: str) -> torch.dtype:
    """Returns bfloat16, or float32 on a processor where torch's library only emulates it, which takes several times as long."""
    has_bfloat16 = device != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if has_bfloat16 else torch.float32


class Objective(Protocol):
    # Depths are below this.
    num_depths: int

    def read(self, backbone: Any, records: Sequence[Record], seed: int) -> Learning:
        """`backbone`: what is trained."""
        ...


class NextToken:
    num_depths = 1

    def __init__(self, index: HeadIndex, device: str = "cpu") -> None:
        self._index = index
        self._device = device

    def read(self, backbone: PreTrainedModel, records: Sequence[Record], seed: int) -> Learning:
        batch = make_batch(records, self._index).to(self._device)
        with torch.autocast(self._device, torch.bfloat16, enabled=product_dtype(self._device) is torch.bfloat16):
            hidden: torch.Tensor = backbone(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return Learning(hidden.flatten(0, 1)[batch.rows], batch.goal, torch.zeros_like(batch.rows))


class MaskedTokens:
    def __init__(self, index: HeadIndex, masks: Masks, device: str = "cpu") -> None:
        self.num_depths = masks.per_anchor + 1
        self._index = index
        self._masks = masks
        self._device = device

    def read(self, backbone: PreTrainedModel, records: Sequence[Record], seed: int) -> Learning:
        embedding = backbone.get_input_embeddings().weight  # [vocab_size, hidden_size]
        random = np.random.default_rng(seed)
        batch = make_masked_batch(records, self._masks, self._index, embedding.shape[0], random).to(self._device)
        rows = torch.cat([embedding, backbone.mask_vectors])[batch.tokens]
        with torch.autocast(self._device, torch.bfloat16, enabled=product_dtype(self._device) is torch.bfloat16):
            hidden: torch.Tensor = backbone(
                inputs_embeds=rows, position_ids=batch.positions, attention_mask=batch.sees, use_cache=False
            ).last_hidden_state
        return Learning(hidden.flatten(0, 1)[batch.rows], batch.goal, batch.depths)
