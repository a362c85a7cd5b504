"""A target that drafts a block of tokens in one forward pass of its head (see `engine.block_drafting`), on a GPU."""

from dataclasses import replace

import numpy as np
import torch

from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.block_drafting import BlockDrafting
from paceline.engine.cuda.draft_heads.dflash import CudaDFlash
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting
from paceline.engine.head_drafting import MAX_ROWS, measured_drafts
from paceline.engine.models.draft_heads.dflash import DFlashConfig


class CudaBlockDrafting(BlockDrafting, CudaHeadDrafting):
    _head: CudaDFlash

    @property
    def _config(self) -> DFlashConfig:
        return self._head.config

    def run_largest(self, num_drafts: int, max_len: int) -> None:
        """Reads as much context as is read at a time, with at most `num_drafts` blocks."""
        table, size = self._repeated_blocks(max_len), min(self._config.block_size, max_len)
        num_context, num_blocks = min(MAX_ROWS, max_len), min(num_drafts, self.num_at_once)
        context = [TokenSpan(0, num_context, 0, table)]
        blocks = [TokenSpan(num_context + number * size, size, max_len - size, table) for number in range(num_blocks)]
        outputs = self._run(context, blocks, [0] * num_blocks * size)
        self._sample(outputs, blocks, measured_drafts(num_blocks))

    def _run(self, context: list[TokenSpan], blocks: list[TokenSpan], tokens: list[int]) -> torch.Tensor:
        known = [span for span in context if span.num_tokens]
        num_context = sum(span.num_tokens for span in known)
        starts = [span.first_token - num_context for span in blocks]
        masks = np.delete(np.arange(len(tokens)), starts)
        batch = Batch(np.array([0] * num_context + tokens), [*known, *blocks], masks)
        plan, kept = self._send(batch, known, 0, max((span.num_tokens for span in blocks), default=1))
        if blocks:
            # The last tiles, one a block: no one needs what the context attends to.
            plan = replace(plan, tiles=plan.tiles[-len(blocks) :])
        return self._head.forward(plan, kept, self._attention)[plan.wanted]
