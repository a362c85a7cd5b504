"""The CPU runner: an engine step is one forward pass, then one call of the sampler."""

from collections.abc import Iterable
from typing import Any, Protocol

import torch

from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cache.state_pool import StatePool, StateSpan
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.models.model_config import TextConfig
from paceline.engine.sampling.logprobs import RowLogprobs, with_confidence
from paceline.engine.sampling.shared_vocabulary import sample_rows
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.scheduling.job import Job

# Row counts of plain rounds and of rounds with drafts. They fit into the smallest block.
WARM_UP_ROWS = 8

# float32 logits at a time, so that memory stays within `backend.RESERVE_BYTES` whatever is asked of how many tokens. Each
# product reads the whole head, so it has many rows; samplers get few, because they work on several copies, in float64.
LOGITS_BYTES = 64 << 20
SAMPLED_BYTES = 16 << 20


class Attention(Protocol):
    """A model's cache. `states` has no slots without recurrent layers."""

    states: StatePool

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None: ...

    def plan(self, spans: list[TokenSpan]) -> Any:
        """Returns a batch's arrays for attention."""
        ...


class CpuModel(Protocol):
    max_model_len: int
    # See `models.quantization.formats_of`.
    quantization: str
    head: Head

    @property
    def config(self) -> TextConfig: ...

    @property
    def is_quantized(self) -> bool:
        """Whether weights are in GGUF's blocks."""
        ...

    def make_cache(self, num_blocks: int, block_size: int) -> Attention: ...

    def padded(self, num_rows: int) -> int:
        """Returns how many rows to run for `num_rows`."""
        ...

    def forward(self, batch: Batch, attention: Any, plan: Any) -> Any:
        """Returns the wanted tokens' rows, of which `logits` takes any part: [num_wanted, ...]. `attention`: a `make_cache`."""
        ...

    def logits(self, rows: Any) -> torch.Tensor:
        """Returns [num_rows, head_size] float32."""
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
            self._model.logits(self._model.forward(batch, self._attention, self._attention.plan(batch.spans)))

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
        rows = self._model.forward(batch, self._attention, plan)
        results = iter(self._sample_rows(rows, flat, sampled))
        for (job, num_rows), of_job in zip(shares, specs, strict=True):
            mine = [next(results) for _ in of_job]
            row_logprobs = [logprobs for _, logprobs in mine if logprobs is not None]
            job.take(num_rows, [value for value, _ in mine], row_logprobs)

    def _sample_rows(
        self, rows: Any, specs: list[SampleSpec], sampled: list[tuple[Job, int]]
    ) -> list[tuple[Sample, RowLogprobs | None]]:
        """rows: of `forward`; sampled: each one's job and pending row."""
        results: list[tuple[Sample, RowLogprobs | None]] = []
        shared = [spec.vocabulary.target_vocab_size for spec in specs if spec.vocabulary is not None]
        row_bytes = 4 * max(self._model.config.vocab_size, *shared, 0)
        for part in _parts(len(specs), LOGITS_BYTES // row_bytes):
            self._model.head.hold(sampled[part])
            logits, of_part = self._model.logits(rows[part]), specs[part]
            for few in _parts(len(of_part), SAMPLED_BYTES // row_bytes):
                results += self._sample(logits[few], few.start, of_part[few])
        return results

    def _sample(
        self, known: torch.Tensor, first: int, specs: list[SampleSpec]
    ) -> Iterable[tuple[Sample, RowLogprobs | None]]:
        """known: the last product's rows from `first` on."""
        head = self._model.head
        if self._known_sampler is not None and not any(spec.needs_whole_vocab for spec in specs):
            found = with_confidence(known, specs, self._known_sampler.sample(known, specs))
            return ((each, None) for each in head.with_ids(found))
        return sample_rows(self._sampler, head.to_full_vocab(known, first), specs)


def _parts(count: int, most: int) -> list[slice]:
    """Splits `count` rows into parts of at most `most`, or of one."""
    size = max(1, most)
    return [slice(first, first + size) for first in range(0, count, size)]
