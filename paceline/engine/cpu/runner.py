"""The CPU runner: an engine step is one forward, then one call of the sampler."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cache.state_pool import StatePool, StateSpan
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.logprobs import RowLogprobs, with_confidence
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.sampling.vocabularies import sample_rows
from paceline.engine.scheduling.job import Job

# Row counts of plain rounds and of rounds with drafts. They fit into the smallest block.
WARM_UP_ROWS = 8


class Attention(Protocol):
    """A model's cache. `states` has no slots without recurrent layers."""

    states: StatePool

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None: ...

    def plan(self, spans: list[TokenSpan]) -> Any:
        """Returns a batch's arrays for attention."""
        ...


class CpuModel(Protocol):
    max_model_len: int
    head: Head

    @property
    def is_quantised(self) -> bool:
        """Whether weights are in GGUF's blocks."""
        ...

    def make_cache(self, num_blocks: int, block_size: int) -> Attention: ...

    def padded(self, num_rows: int) -> int:
        """Returns how many rows to run for `num_rows`."""
        ...

    def forward(self, batch: Batch, attention: Any, plan: Any) -> torch.Tensor:
        """Returns the wanted tokens' logits: [num_wanted, head_size] float32. `attention`: from `make_cache`."""
        ...


class CpuRunner:
    """Runs engine steps, on the worker's thread only."""

    def __init__(self, model: CpuModel, attention: Attention) -> None:
        self._model = model
        self._attention = attention
        self._sampler = CpuSampler()
        # For a head that knows only some tokens: samples from their logits.
        self._known_sampler = None if model.head.is_full_vocab else CpuSampler(model.head.ids)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Prepares kernels for the usual sizes. Writes to the first block and state, which no sequence holds yet."""
        for num_rows in range(1, min(WARM_UP_ROWS, self._model.max_model_len) + 1):
            builder = BatchBuilder()
            wanted = [False] * (num_rows - 1) + [True]
            builder.add([0] * num_rows, 0, [0], wanted, StateSpan(0, 0, 0, 0, 0))
            batch = builder.build(self._model.padded(builder.num_tokens))
            self._model.forward(batch, self._attention, self._attention.plan(batch.spans))

    @torch.inference_mode()
    def step(self, shares: list[tuple[Job, int]]) -> None:
        builder = BatchBuilder()
        specs = []
        sampled: list[tuple[Job, int]] = []
        # Before states are planned: a job may be at fault here, and the others' caches stay as they are.
        all_wanted = [job.specs(num_rows) for job, num_rows in shares]
        for (job, num_rows), wanted in zip(shares, all_wanted, strict=True):
            tokens = job.pending[:num_rows]
            sequence = job.sequence
            is_wanted = [spec is not None for spec in wanted]
            builder.add(tokens, sequence.length, sequence.blocks, is_wanted, sequence.plan_state(num_rows))
            specs.append([spec for spec in wanted if spec is not None])
            sampled += [(job, row) for row, spec in enumerate(wanted) if spec is not None]
        batch = builder.build(self._model.padded(builder.num_tokens))
        plan = self._attention.plan(batch.spans)
        flat = [spec for of_job in specs for spec in of_job]
        self._model.head.hold(sampled)
        known = self._model.forward(batch, self._attention, plan)  # [num_wanted, head_size]
        results = iter(self._sample(known, flat) if flat else [])
        for (job, num_rows), of_job in zip(shares, specs, strict=True):
            mine = [next(results) for _ in of_job]
            row_logprobs = [logprobs for _, logprobs in mine if logprobs is not None]
            job.take(num_rows, [value for value, _ in mine], row_logprobs)

    def _sample(self, known: torch.Tensor, specs: list[SampleSpec]) -> Iterable[tuple[Sample, RowLogprobs | None]]:
        head = self._model.head
        if self._known_sampler is not None and not any(spec.needs_whole_vocab for spec in specs):
            found = with_confidence(known, specs, self._known_sampler.sample(known, specs))
            return ((each, None) for each in head.with_ids(found))
        return sample_rows(self._sampler, head.to_full_vocab(known), specs)
