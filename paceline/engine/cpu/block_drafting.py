"""A target that drafts a block of tokens in one forward pass of its head (see `engine.block_drafting`), on a CPU."""

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.block_drafting import BlockDrafting
from paceline.engine.cpu.dflash import CpuDFlash
from paceline.engine.cpu.head_drafting import CpuHeadDrafting
from paceline.engine.models.draft_heads.dflash import DFlashConfig


class CpuBlockDrafting(BlockDrafting, CpuHeadDrafting):
    _head: CpuDFlash

    @property
    def _config(self) -> DFlashConfig:
        return self._head.config

    def _run(self, context: list[TokenSpan], blocks: list[TokenSpan], tokens: list[int]) -> Array:
        plan = self._attention.plan(blocks, context, sees_ahead=True)
        outputs = self._head.forward(np.array(tokens, np.int64), self._kept(context), self._attention, plan)
        starts = np.cumsum([0, *(span.num_tokens for span in blocks)])[:-1]
        return np.delete(outputs, starts, 0)
