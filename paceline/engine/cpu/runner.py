"""The CPU runner: an engine step is one forward pass, then one call of the sampler."""

import logging
from typing import Any, Protocol

import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cache.state_pool import StatePool, StateSpan
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.head_drafting import CpuHeadDrafting
from paceline.engine.cpu.head_sampler import SAMPLED_BYTES, HeadSampler, parts
from paceline.engine.models.model_config import TextConfig
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.scheduling.job import Job

log = logging.getLogger(__name__)
# Row counts of plain rounds and of rounds with drafts. They fit into the smallest block.
WARM_UP_ROWS = 8

# float32 logits of one product, which reads the whole head and so has more rows than a sampler gets (SAMPLED_BYTES).
LOGITS_BYTES = 64 << 20


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

    def __init__(self, model: CpuModel, attention: Attention, drafting: CpuHeadDrafting | None = None) -> None:
        """`drafting`: by the model's draft head, which only our own layers have."""
        self._model = model
        self._attention = attention
        self._drafting = drafting
        self._sampler = HeadSampler(model.head)

    @torch.inference_mode()
    def warm_up(self) -> None:
        """Prepares kernels for the usual sizes. Writes to the first block and state, which no sequence holds yet."""
        for num_rows in range(1, min(WARM_UP_ROWS, self._model.max_model_len) + 1):
            builder = BatchBuilder()
            wanted = [False] * (num_rows - 1) + [True]
            builder.add([0] * num_rows, 0, [0], wanted, StateSpan(0, 0, 0, 0, 0))
            batch = builder.build(self._model.padded(builder.num_tokens))
            plan = self._attention.plan(batch.spans)
            self._model.logits(self._model.forward(batch, self._attention, plan))
            if self._drafting is not None:
                _, states = self._drafting.forward(batch, self._attention, plan)
                self._drafting.warm_up(batch, states)

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
        drafting, states = self._drafting_for(shares), list[Array]()
        if drafting is None:
            rows = self._model.forward(batch, self._attention, plan)
        else:
            rows, states = drafting.forward(batch, self._attention, plan)
        results = iter(self._sample_rows(rows, flat, sampled))
        for (job, num_rows), of_job in zip(shares, specs, strict=True):
            mine = [next(results) for _ in of_job]
            row_logprobs = [logprobs for _, logprobs in mine if logprobs is not None]
            job.take(num_rows, [value for value, _ in mine], row_logprobs)
        if drafting is not None:
            self._draft(drafting, shares, batch, states)

    def _draft(
        self, drafting: CpuHeadDrafting, shares: list[tuple[Job, int]], batch: Batch, states: list[Array]
    ) -> None:
        """Drafts without risk: the jobs have their results already, and a head that fails is not used again."""
        try:
            drafting.run(shares, batch, states)
        except Exception:
            log.exception("the draft head failed; the target goes on without it")
            self._drafting = None

    def _drafting_for(self, shares: list[tuple[Job, int]]) -> CpuHeadDrafting | None:
        """Returns what reads the step's hidden states, if any of its sequences uses the draft head."""
        uses_it = self._drafting is not None and any(job.sequence.options.uses_draft_head for job, _ in shares)
        return self._drafting if uses_it else None

    def _sample_rows(
        self, rows: Any, specs: list[SampleSpec], sampled: list[tuple[Job, int]]
    ) -> list[tuple[Sample, RowLogprobs | None]]:
        """rows: of `forward`; sampled: each one's job and pending row."""
        results: list[tuple[Sample, RowLogprobs | None]] = []
        shared = [spec.vocabulary.target_vocab_size for spec in specs if spec.vocabulary is not None]
        row_bytes = 4 * max(self._model.config.vocab_size, *shared, 0)
        for part in parts(len(specs), LOGITS_BYTES // row_bytes):
            self._model.head.hold(sampled[part])
            logits, of_part = self._model.logits(rows[part]), specs[part]
            for few in parts(len(of_part), SAMPLED_BYTES // row_bytes):
                results += self._sampler.sample(logits[few], of_part[few], few.start)
        return results
