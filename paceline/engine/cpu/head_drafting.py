"""A target that drafts for itself: what a draft head computes after each of the target's steps.

The head's keys and values are one more layer of the target's blocks, and so is the hidden state that it reads of each
position. Position t of the head depends on the tokens up to t alone. So prefix hits, forks, truncation, eviction and replay
need no rule of their own. Hidden states are kept of all that the target reads; the head itself reads what it lacks when it is
asked for drafts.
"""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cache.sequence import Sequence as CacheSequence
from paceline.engine.cpu.draft_head import DraftHead, HeadTarget
from paceline.engine.cpu.head_sampler import SAMPLED_BYTES, HeadSampler, parts
from paceline.engine.cpu.kernels.attention import AttentionPlan
from paceline.engine.cpu.kernels.memory import map_region
from paceline.engine.cpu.paged_attention import CpuPagedAttention, KvShape, make_layout
from paceline.engine.sampling.specs import Argmax, ConfidentSample
from paceline.engine.scheduling.job import Job, NextDrafts
from paceline.sampling_params import SamplingParams

# Sizes at which a forward pass of the head is timed, if a block holds as many tokens.
TIMED_ROWS = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 3
# Most tokens of a long context that the head reads at a time.
MAX_ROWS = 512


def head_block_bytes(layer: KvShape, hidden_size: int, block_size: int, dtype: np.dtype[Any], kv: np.dtype[Any]) -> int:
    """Returns what a head of one layer, or of several, adds to a block."""
    return make_layout(layer, layer.num_layers, block_size, kv).block_bytes + block_size * hidden_size * dtype.itemsize


def measured_drafts(num_drafts: int) -> list[NextDrafts]:
    """Returns what is asked of a head when it is timed: a likeliest token each."""
    spec = Argmax(SamplingParams(temperature=0, seed=0), (), wants_confidence=True)
    return [NextDrafts(1, 0.0, 1, 0, lambda _: spec) for _ in range(num_drafts)]


class HeadDrafting:
    def __init__(
        self,
        model: HeadTarget,
        head: DraftHead,
        num_blocks: int,
        block_size: int,
        dtype: np.dtype[Any],
        kv_dtype: np.dtype[Any],
    ) -> None:
        self._model, self._head, self._block_size = model, head, block_size
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

    def run(self, shares: Sequence[tuple[Job, int]], batch: Batch, states: list[Array]) -> None:
        """Reads what a step has fed, and drafts what the jobs ask for. To be called once they have taken their samples.

        states: the target's hidden states of the batch, [num_tokens, hidden_size] each.
        """
        started_s = time.perf_counter()
        pairs = zip(shares, batch.spans, strict=True)
        reading = [(job, span) for (job, _), span in pairs if job.sequence.options.uses_draft_head]
        self._keep(states, [span for _, span in reading])
        self._draft_behind([(wanted, job.sequence) for job, _ in reading if (wanted := job.next_drafts) is not None])
        seconds = time.perf_counter() - started_s
        for job, _ in shares:
            # All of them waited for it.
            job.count_drafting(seconds)

    def _draft_behind(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> None:
        outputs = self._read(drafting)
        while drafting:
            goes_on = self._draft(outputs, [wanted for wanted, _ in drafting])
            drafting, outputs = [each for each, more in zip(drafting, goes_on, strict=True) if more], outputs[goes_on]
            if not drafting:
                break
            spans = [
                TokenSpan(row, 1, wanted.position + len(wanted.tokens) - 1, sequence.blocks)
                for row, (wanted, sequence) in enumerate(drafting)
            ]
            outputs = self._forward(np.array([wanted.tokens[-1] for wanted, _ in drafting]), outputs, spans)

    def _read(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> Array:
        """Reads what the head has not read of each sequence, and the newest token. Returns the outputs at the newest tokens.

        Only now, for most rounds may need no drafts.
        """
        builder = BatchBuilder()
        for wanted, sequence in drafting:
            end = wanted.position - 1
            # Blocks of others that are shared get what they have already.
            while (first := sequence.num_head_read) < end - MAX_ROWS:
                spans = [TokenSpan(0, MAX_ROWS, first, sequence.blocks)]
                self._forward(np.array(sequence.tokens[first : first + MAX_ROWS]), self._before(spans), spans)
                sequence.num_head_read += MAX_ROWS
            known = [*sequence.tokens[first:end], wanted.newest]
            builder.add(known, first, sequence.blocks, [False] * (len(known) - 1) + [True])
            # The newest is not in the target's cache.
            sequence.num_head_read = end
        batch = builder.build(builder.num_tokens)
        if not drafting:
            return np.empty((0, self._head.hidden_size), self._hidden.dtype)
        return self._forward(batch.tokens, self._before(batch.spans), batch.spans)[batch.wanted]

    def warm_up(self, batch: Batch, states: list[Array]) -> None:
        """Prepares kernels for this number of rows. Writes to the first block."""
        self._keep(states, batch.spans)
        self._measure(0, min(len(batch.spans[0].blocks) * self._block_size, batch.spans[0].num_tokens))

    @torch.inference_mode()
    def measure(self, block: int) -> list[tuple[int, float]]:
        """Returns (rows, seconds) of the head's forward passes, with a draft of each row. `block`: one that is free."""
        sizes = [size for size in TIMED_ROWS if size <= self._block_size]
        found = [(size, min(self._measure(block, size) for _ in range(REPEATS))) for size in sizes]
        return [(size, min(seconds for other, seconds in found if other >= size)) for size, _ in found]

    def _measure(self, block: int, num_rows: int) -> float:
        spans = [TokenSpan(row, 1, row, [block]) for row in range(num_rows)]
        drafts = measured_drafts(num_rows)
        hidden = np.zeros((num_rows, self._head.hidden_size), self._hidden.dtype)
        started_s = time.perf_counter()
        self._draft(self._forward(np.zeros(num_rows, np.int64), hidden, spans), drafts)
        return time.perf_counter() - started_s

    def _forward(self, tokens: Array, hidden: Array, spans: list[TokenSpan]) -> Array:
        return self._head.forward(tokens, hidden, self._attention, self._attention.plan(spans))

    def _keep(self, states: list[Array], spans: Sequence[TokenSpan]) -> None:
        """Keeps what the head reads of the spans' positions. states: [num_tokens, hidden_size] each."""
        rows = np.concatenate([span.first_token + np.arange(span.num_tokens) for span in spans])
        places = [self._places(span, span.position) for span in spans]
        blocks, offsets = (np.concatenate(each) for each in zip(*places, strict=True))
        self._hidden[blocks, offsets] = self._head.fuse([each[rows] for each in states])

    def _before(self, spans: Sequence[TokenSpan]) -> Array:
        """Returns what was kept of the position before each of the spans' tokens: [num_tokens, hidden_size]."""
        # Nothing is before position 0, which no other position attends to.
        return self._kept(spans, -1)

    def _kept(self, spans: Sequence[TokenSpan], offset: int = 0) -> Array:
        """Returns what was kept of the spans' positions, or of others at this offset: [num_tokens, hidden_size]."""
        places = [self._places(span, span.position + offset) for span in spans]
        rows = [self._hidden[blocks, offsets] for blocks, offsets in places]
        return np.concatenate([self._hidden[:0, 0], *rows])

    def _places(self, span: TokenSpan, first: int) -> tuple[Array, Array]:
        positions = np.maximum(first + np.arange(span.num_tokens), 0)
        return np.asarray(span.blocks)[positions // self._block_size], positions % self._block_size

    def _draft(self, outputs: Array, drafting: Sequence[NextDrafts]) -> list[bool]:
        """Adds a draft to each. Returns which of them go on. outputs: [num_drafting, hidden_size]."""
        goes_on = list[bool]()
        for few in parts(len(drafting), SAMPLED_BYTES // (4 * self._model.config.vocab_size)):
            specs = [each.spec(each.position + len(each.tokens)) for each in drafting[few]]
            samples = self._sampler.sample(self._head.logits(outputs[few]), specs)
            for wanted, (sample, _) in zip(drafting[few], samples, strict=True):
                assert isinstance(sample, ConfidentSample), "all specs want a confidence"
                goes_on.append(wanted.add(sample.token, sample.confidence))
        return goes_on
