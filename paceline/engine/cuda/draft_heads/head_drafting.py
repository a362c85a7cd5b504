"""What a draft head computes after each of a target's steps (see `engine.head_drafting`), on a GPU."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch

from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.cuda.draft_heads.draft_head import CudaDraftHead
from paceline.engine.cuda.forward_plan import Field, ForwardPlan, ForwardShape, Staging
from paceline.engine.cuda.llama import States
from paceline.engine.cuda.sampling.table_sampler import TableSampler
from paceline.engine.head_drafting import MAX_ROWS, HeadDrafting, measured_drafts
from paceline.engine.sampling.specs import Sample, SampleSpec


class SlottedStates(NamedTuple):
    """A step's hidden states on the GPU."""

    states: States
    slots: torch.Tensor  # [num_rows]: as in `ForwardPlan`


class CudaHeadDrafting(HeadDrafting):
    def __init__(self, head: CudaDraftHead, num_blocks: int, block_size: int, device: torch.device) -> None:
        """num_blocks: with the one that no sequence holds (see `forward_plan`)."""
        super().__init__(block_size)
        self._head, self._device, self._num_blocks = head, device, num_blocks
        self._attention = head.make_cache(num_blocks, block_size)
        # What the head reads of each position: [num_blocks, block_size, hidden_size].
        self._hidden = self._attention.keys.new_zeros((num_blocks, block_size, head.hidden_size))
        self._sampler = TableSampler(device)

    @property
    def block_bytes(self) -> int:
        return self._attention.block_bytes + self._hidden.nbytes // self._num_blocks

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        self._attention.copy_blocks(sources, destinations)
        self._hidden[destinations] = self._hidden[sources]

    def new_states(self, num_rows: int) -> States:
        """Returns uninitialized rows for the target's `forward`."""
        return {layer: self._hidden.new_empty((num_rows, self._head.hidden_size)) for layer in self._head.after}

    def states_bytes(self, num_rows: int) -> int:
        """Returns the bytes of `new_states`."""
        return len(self._head.after) * num_rows * self._head.hidden_size * self._hidden.element_size()

    def run_largest(self, num_drafts: int, max_len: int) -> None:
        """Runs the largest forward pass at the end of the longest context, with at most `num_drafts` drafts."""
        num_tokens = min(MAX_ROWS, max_len)
        spans = [TokenSpan(0, num_tokens, max_len - num_tokens, self._repeated_blocks(max_len))]
        wanted = np.arange(num_tokens)[-num_drafts:]
        outputs = self._forward(Batch(np.zeros(num_tokens, np.int64), spans, wanted), None)
        self._draft(outputs, measured_drafts(len(wanted)))

    def _repeated_blocks(self, length: int) -> list[int]:
        """Returns a table for so many tokens, which has few blocks many times."""
        return [index % (self._num_blocks - 1) for index in range(-(-length // self._block_size))]

    def _keep(self, states: SlottedStates, spans: Sequence[TokenSpan]) -> None:
        """Keeps all rows: those that no head reads take no longer, and have a place of their own."""
        self._hidden.flatten(0, 1).index_copy_(0, states.slots.long(), self._head.fuse(list(states.states.values())))

    def _forward(self, batch: Batch, hidden: torch.Tensor | None) -> torch.Tensor:
        # Nothing is before position 0, which no other position attends to.
        plan, before = self._send(batch, batch.spans if hidden is None else (), -1)
        return self._head.forward(plan, before if hidden is None else hidden, self._attention)[plan.wanted]

    def _send(
        self, batch: Batch, spans: Sequence[TokenSpan], offset: int, num_together: int = 1
    ) -> tuple[ForwardPlan, torch.Tensor]:
        """Returns also what was kept of the positions at this offset from the spans': [num_tokens, hidden_size].

        num_together: see `ForwardShape.of`.
        """
        places = [self._places(span, offset) for span in spans]
        slots = np.concatenate([np.empty(0, np.int64), *(block * self._block_size + at for block, at in places)])
        shape = ForwardShape.of(batch, batch_invariant=False, num_together=num_together)
        more = [Field(slots.shape, torch.int64)]
        staging = Staging(shape, self._num_blocks, self._block_size, self._device, more)
        staging.more_on_host[0][:] = slots
        staging.fill(batch)
        return staging.plan, self._hidden.flatten(0, 1)[staging.more_on_device[0]]

    def _samples(self, outputs: torch.Tensor, specs: Sequence[SampleSpec]) -> list[Sample]:
        return self._sampler.sample(self._head.logits(outputs), specs)
