"""A target that drafts for itself: what a draft head computes after each of the target's steps.

The head's keys and values are one more layer of the target's blocks, and so is the hidden state that it reads of each
position. Position t of the head depends on the tokens up to t alone. So prefix hits, forks, truncation, eviction and replay
need no rule of their own. Hidden states are kept of all that the target reads; the head itself reads what it lacks when it is
asked for drafts.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cache.sequence import Sequence as CacheSequence
from paceline.engine.sampling.specs import Argmax, ConfidentSample, Sample, SampleSpec
from paceline.engine.scheduling.job import Job, NextDrafts
from paceline.sampling_params import SamplingParams

# No row of a head attends to position 0: there is no hidden state before it.
FIRST_POSITION = 1
# Sizes at which a forward pass of the head is timed, if a block holds as many tokens.
TIMED_ROWS = (1, 2, 4, 8, 16, 32, 64)
REPEATS = 3
# Most tokens that the head reads at a time, of all sequences together; if there are more sequences, one of each.
MAX_ROWS = 512


def measured_drafts(num_drafts: int) -> list[NextDrafts]:
    """Returns what is asked of a head when it is timed: a likeliest token each."""
    spec = Argmax(SamplingParams(temperature=0, seed=0), (), wants_confidence=True)
    return [NextDrafts(1, 0.0, 1, 0, lambda _: spec) for _ in range(num_drafts)]


class HeadDrafting(ABC):
    """Drafts a token at a time for many sequences. A backend has the arrays, of types of its own."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size

    @abstractmethod
    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        """Copies all that the head has in these blocks."""

    @abstractmethod
    def _keep(self, states: Any, spans: Sequence[TokenSpan]) -> None:
        """Keeps what the head reads of the spans' positions. states: a step's, as `run` takes them."""

    @abstractmethod
    def _forward(self, batch: Batch, hidden: Any) -> Any:
        """Runs the head. Returns the wanted rows' outputs: [num_wanted, hidden_size].

        hidden: what each row reads of the position before it, [num_tokens, hidden_size]; None: what was kept of it.
        """

    @abstractmethod
    def _samples(self, outputs: Any, specs: Sequence[SampleSpec]) -> list[Sample]:
        """outputs: rows of `_forward`, [num_specs, hidden_size]."""

    def run(self, shares: Sequence[tuple[Job, int]], batch: Batch, states: Any) -> None:
        """Reads what a step has fed, and drafts what the jobs ask for. To be called once they have taken their samples.

        states: the target's hidden states of the batch.
        """
        started_s = time.perf_counter()
        pairs = zip(shares, batch.spans, strict=True)
        reading = [(job, span) for (job, _), span in pairs if job.sequence.options.uses_draft_head]
        self._keep(states, [span for _, span in reading])
        drafting = [(wanted, job.sequence) for job, _ in reading if (wanted := job.next_drafts) is not None]
        if drafting:
            self._draft_behind(drafting)
        seconds = time.perf_counter() - started_s
        for job, _ in shares:
            # All of them waited for it.
            job.count_drafting(seconds)

    def _draft_behind(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> None:
        outputs = self._read(drafting)
        while going_on := self._draft(outputs, [wanted for wanted, _ in drafting]):
            if len(going_on) < len(drafting):
                drafting, outputs = [drafting[place] for place in going_on], outputs[going_on]
            spans = [
                TokenSpan(row, 1, wanted.position + len(wanted.tokens) - 1, sequence.blocks)
                for row, (wanted, sequence) in enumerate(drafting)
            ]
            newest = np.array([wanted.tokens[-1] for wanted, _ in drafting])
            outputs = self._forward(Batch(newest, spans, np.arange(len(spans))), outputs)

    def _read(self, drafting: Sequence[tuple[NextDrafts, CacheSequence]]) -> Any:
        """Reads what the head has not read of each sequence, and the newest token. Returns the outputs at the newest tokens.

        Only now, for most rounds may need no drafts.
        """
        builder = BatchBuilder()
        num_lacking = sum(wanted.position - sequence.num_head_read for wanted, sequence in drafting)
        most = MAX_ROWS if num_lacking <= MAX_ROWS else max(1, MAX_ROWS // len(drafting))
        for wanted, sequence in drafting:
            end = wanted.position - 1
            # Blocks of others that are shared get what they have already.
            while end - (first := sequence.num_head_read) >= most:
                tokens = np.array(sequence.tokens[first : min(end, first + MAX_ROWS)])
                spans = [TokenSpan(0, len(tokens), first, sequence.blocks)]
                self._forward(Batch(tokens, spans, np.empty(0, np.int64)), None)
                sequence.num_head_read += len(tokens)
            known = [*sequence.tokens[first:end], wanted.newest]
            builder.add(known, first, sequence.blocks, [False] * (len(known) - 1) + [True])
            # The newest is not in the target's cache.
            sequence.num_head_read = end
        return self._forward(builder.build(builder.num_tokens), None)

    @torch.inference_mode()
    def measure(self, block: int) -> list[tuple[int, float]]:
        """Returns (rows, seconds) of the head's forward passes, with a draft of each row. `block`: one that is free."""
        sizes = [size for size in TIMED_ROWS if size <= self._block_size]
        found = [(size, min(self._measure(block, size) for _ in range(REPEATS))) for size in sizes]
        return [(size, min(seconds for other, seconds in found if other >= size)) for size, _ in found]

    def _measure(self, block: int, num_rows: int) -> float:
        spans = [TokenSpan(row, 1, row, [block]) for row in range(num_rows)]
        batch, drafts = Batch(np.zeros(num_rows, np.int64), spans, np.arange(num_rows)), measured_drafts(num_rows)
        started_s = time.perf_counter()
        self._draft(self._forward(batch, None), drafts)
        return time.perf_counter() - started_s

    def _draft(self, outputs: Any, drafting: Sequence[NextDrafts]) -> list[int]:
        """Adds a draft to each. Returns the indices of those that go on. outputs: [num_drafting, hidden_size]."""
        specs = [each.spec(each.position + len(each.tokens)) for each in drafting]
        going_on = []
        for index, (wanted, sample) in enumerate(zip(drafting, self._samples(outputs, specs), strict=True)):
            assert isinstance(sample, ConfidentSample), "all specs want a confidence"
            if wanted.add(sample.token, sample.confidence):
                going_on.append(index)
        return going_on

    def _places(self, span: TokenSpan, offset: int) -> tuple[Array, Array]:
        """Returns the blocks of the positions at this offset from the span's, and the places in them; before 0: of 0."""
        positions = np.maximum(span.position + offset + np.arange(span.num_tokens), 0)
        return np.asarray(span.blocks)[positions // self._block_size], positions % self._block_size
