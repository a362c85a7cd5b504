"""Lessons: which rows of a batch of conversations learn, and from what."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from transformers import PreTrainedModel

from paceline.distillation.corpus.conversation import Record
from paceline.distillation.training.batches import make_batch
from paceline.distillation.training.head import HeadIndex
from paceline.distillation.training.loss import Goal
from paceline.distillation.training.masked_batches import Masks, make_masked_batch


@dataclass(frozen=True, slots=True)
class Learning:
    """The rows that learn."""

    # What the backbone makes of them.
    hidden: torch.Tensor  # [num_rows, hidden_size]
    goal: Goal
    # How many tokens behind the last one that a row knows: 0 for the next token.
    depths: torch.Tensor  # [num_rows] int64


class Lesson(Protocol):
    """A way to learn from conversations."""

    # The rows of a batch have depths below this.
    num_depths: int

    def read(self, backbone: PreTrainedModel, records: Sequence[Record], seed: int) -> Learning:
        """Runs the backbone. `seed`: of what is random in it."""
        ...


class TextLesson:
    """Every row of the text learns the next token: the draft proposes step by step."""

    num_depths = 1

    def __init__(self, index: HeadIndex, device: str = "cpu") -> None:
        self._index = index
        self._device = device

    def read(self, backbone: PreTrainedModel, records: Sequence[Record], seed: int) -> Learning:
        batch = make_batch(records, self._index).to(self._device)
        with torch.autocast(self._device, torch.bfloat16):
            hidden: torch.Tensor = backbone(input_ids=batch.tokens, use_cache=False).last_hidden_state
        return Learning(hidden.flatten(0, 1)[batch.rows], batch.goal, torch.zeros_like(batch.rows))


class MaskLesson:
    """Mask rows learn tokens further on: the draft proposes several tokens in one forward."""

    def __init__(self, index: HeadIndex, masks: Masks, device: str = "cpu") -> None:
        self.num_depths = masks.num_rows + 1
        self._index = index
        self._masks = masks
        self._device = device

    def read(self, backbone: PreTrainedModel, records: Sequence[Record], seed: int) -> Learning:
        embedding = backbone.get_input_embeddings().weight  # [vocab_size, hidden_size]
        random = np.random.default_rng(seed)
        batch = make_masked_batch(records, self._masks, self._index, embedding.shape[0], random).to(self._device)
        rows = torch.cat([embedding, backbone.mask_vectors])[batch.tokens]
        with torch.autocast(self._device, torch.bfloat16):
            hidden: torch.Tensor = backbone(
                inputs_embeds=rows, position_ids=batch.positions, attention_mask=batch.sees, use_cache=False
            ).last_hidden_state
        return Learning(hidden.flatten(0, 1)[batch.rows], batch.goal, batch.depths)
