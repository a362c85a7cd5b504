"""What a draft head computes after each of a target's steps (see `engine.head_drafting`), on a CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.cpu.draft_head import DraftHead, HeadTarget
from paceline.engine.cpu.head_sampler import SAMPLED_BYTES, HeadSampler, parts
from paceline.engine.cpu.kernels.attention import AttentionPlan
from paceline.engine.cpu.kernels.memory import map_region
from paceline.engine.cpu.paged_attention import CpuPagedAttention, KvShape, make_layout
from paceline.engine.head_drafting import HeadDrafting
from paceline.engine.sampling.specs import Sample, SampleSpec


def head_block_bytes(layer: KvShape, hidden_size: int, block_size: int, dtype: np.dtype[Any], kv: np.dtype[Any]) -> int:
    """Returns what a head of one layer, or of several, adds to a block."""
    return make_layout(layer, layer.num_layers, block_size, kv).block_bytes + block_size * hidden_size * dtype.itemsize


class CpuHeadDrafting(HeadDrafting):
    def __init__(
        self,
        model: HeadTarget,
        head: DraftHead,
        num_blocks: int,
        block_size: int,
        dtype: np.dtype[Any],
        kv_dtype: np.dtype[Any],
    ) -> None:
        super().__init__(block_size)
        self._model, self._head = model, head
        self._attention = CpuPagedAttention(head.kv_shape, num_blocks, block_size, kv_dtype)
        num_bytes = num_blocks * block_size * head.hidden_size * dtype.itemsize
        # What the head reads of each position: [num_blocks, block_size, hidden_size].
        self._hidden = map_region(num_bytes)[:num_bytes].view(dtype).reshape(num_blocks, block_size, -1)
        self._sampler = HeadSampler(head.head)

    def forward(self, batch: Batch, attention: Any, plan: AttentionPlan) -> tuple[Any, list[Array]]:
        """Runs the target. Returns what its `forward` returns, and the hidden states that `run` takes."""
        return self._model.forward_with_states(batch, attention, plan, self._head.after)

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        self._attention.copy_blocks(sources, destinations)
        self._hidden[destinations] = self._hidden[sources]

    def warm_up(self, batch: Batch, states: list[Array]) -> None:
        """Prepares kernels for this number of rows. Writes to the first block."""
        self._keep(states, batch.spans)
        self._measure(0, min(len(batch.spans[0].blocks) * self._block_size, batch.spans[0].num_tokens))

    def _forward(self, batch: Batch, hidden: Array | None) -> Array:
        # Nothing is before position 0, which no other position attends to.
        before = self._kept(batch.spans, -1) if hidden is None else hidden
        plan = self._attention.plan(batch.spans)
        return self._head.forward(batch.tokens, before, self._attention, plan)[batch.wanted]

    def _keep(self, states: list[Array], spans: Sequence[TokenSpan]) -> None:
        """states: [num_tokens, hidden_size] each."""
        rows = np.concatenate([span.first_token + np.arange(span.num_tokens) for span in spans])
        places = [self._places(span, 0) for span in spans]
        blocks, offsets = (np.concatenate(each) for each in zip(*places, strict=True))
        self._hidden[blocks, offsets] = self._head.fuse([each[rows] for each in states])

    def _kept(self, spans: Sequence[TokenSpan], offset: int = 0) -> Array:
        """Returns what was kept of the spans' positions, or of others at this offset: [num_tokens, hidden_size]."""
        rows = [self._hidden[self._places(span, offset)] for span in spans]
        return np.concatenate([self._hidden[:0, 0], *rows])

    def _samples(self, outputs: Array, specs: Sequence[SampleSpec]) -> list[Sample]:
        found: list[Sample] = []
        for few in parts(len(specs), SAMPLED_BYTES // (4 * self._model.config.vocab_size)):
            found += [sample for sample, _ in self._sampler.sample(self._head.logits(outputs[few]), specs[few])]
        return found
