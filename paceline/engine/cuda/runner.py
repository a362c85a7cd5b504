"""The CUDA runner: an engine step runs one program.

A small batch is padded to a shape with a captured graph. If a job's next steps only feed the tokens they sample
(`Job.multi_step_specs`), one program runs several steps.
"""

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graph_shapes import GraphShapes
from paceline.engine.cuda.model import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.program import Program
from paceline.engine.cuda.sampling.encoding import Results, decode, is_codable, sample_remainder
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.engine.scheduling.job import Job
from paceline.errors import DeviceLost


def raise_if_lost(device: torch.device, error: Exception) -> None:
    """Raises DeviceLost if the GPU no longer works after `error`.

    Asks the GPU: after an illegal address every later call fails, after a refused launch or exhausted memory none does.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        first_line = str(fault).splitlines()[0]
        raise DeviceLost(f"the GPU failed and this process can no longer use it: {first_line}") from error


# A progress line after this many captured graphs.
REPORT_EVERY = 25


@dataclass(frozen=True, slots=True)
class _Row:
    job: Job
    # Index of the job's sequence in the batch.
    sequence_index: int
    spec: SampleSpec
    # The sample specs of the next steps.
    next_specs: list[SampleSpec]


class CudaRunner:
    """Runs engine steps, on the worker's thread only."""

    def __init__(
        self,
        model: CudaLlama,
        attention: CudaPagedAttention,
        batch_invariant: bool,
        graph_shapes: GraphShapes,
        device: torch.device,
    ) -> None:
        self._model, self._attention = model, attention
        self._batch_invariant, self._device, self._graph_shapes = batch_invariant, device, graph_shapes
        self._sampler = Sampler(TorchSampler())
        self._programs: dict[tuple[ForwardShape, int], Program] = {}
        # The program of the last step.
        self.last: Program | None = None
        # All programs share the logits, their largest array: only one program runs at a time.
        self._logits = torch.zeros((graph_shapes.most_logits(), model.config.vocab_size), device=device)

    @property
    def model_bytes(self) -> int:
        return self._model.num_bytes

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        if self._device.type != "cuda":
            return
        shapes, pool = list(self._graph_shapes.shapes()), torch.cuda.graph_pool_handle()
        # The rows go to the last block, which no sequence holds.
        padding_span = [TokenSpan(0, 1, 0, [self._attention.num_blocks - 1])]
        for done, (shape, num_ahead) in enumerate(shapes):
            if done % REPORT_EVERY == 0:
                progress(f"capturing graph {done + 1} of {len(shapes)}")
            program = self._program(shape, num_ahead)
            program.fill(Batch(np.zeros(1, np.int64), padding_span, np.zeros(1, np.int64)), [], [], [])
            program.capture(pool)

    @torch.inference_mode()
    def step(self, shares: list[tuple[Job, int]]) -> None:
        """Feeds the given number of pending tokens of each job, and next steps (`multi_step_specs`) if possible.

        Raises DeviceLost if the GPU will fail every later step too.
        """
        try:
            self._step(shares)
        except Exception as error:
            raise_if_lost(self._device, error)
            raise

    def _step(self, shares: list[tuple[Job, int]]) -> None:
        builder = BatchBuilder()
        rows: list[_Row] = []
        for sequence_index, (job, num_rows) in enumerate(shares):
            wanted = job.specs(num_rows)
            builder.add(
                job.pending[:num_rows], job.sequence.length, job.sequence.blocks, [spec is not None for spec in wanted]
            )
            next_specs = job.multi_step_specs() if num_rows == len(job.pending) else []
            samples = [spec for spec in wanted if spec is not None]
            # The next step feeds the token that the job's last row samples.
            rows += [_Row(job, sequence_index, spec, next_specs if spec is samples[-1] else []) for spec in samples]
        batch = builder.build(builder.num_tokens)
        program = self.last = self._program_for(batch, self._steps_ahead(rows))
        ahead = [row.next_specs[: program.num_ahead] for row in rows]
        program.fill(batch, [row.spec for row in rows], [row.sequence_index for row in rows], ahead)
        results = program.run()
        first = iter(zip(rows, self._decoded([row.spec for row in rows], program, results, 0), strict=True))
        for job, num_rows in shares:
            job.sequence.tokens += job.pending[:num_rows]
            del job.pending[:num_rows]
            self._hand_over(job, [next(first)[1] for row in rows if row.job is job])
        self._absorb_next_steps(rows, program, results)

    def _steps_ahead(self, rows: Seq[_Row]) -> int:
        """Returns the most next steps that a job asks for, 0 if a spec can't be encoded."""
        if not all(map(is_codable, (spec for row in rows for spec in (row.spec, *row.next_specs)))):
            return 0
        return self._graph_shapes.multi_steps(max((len(row.next_specs) for row in rows), default=0))

    def _absorb_next_steps(self, rows: Seq[_Row], program: Program, results: Results) -> None:
        # Next steps after a row that the kernels could not sample are invalid; later engine steps repeat them.
        active = [(index, row) for index, row in enumerate(rows) if results.is_complete[0, index]]
        for step in range(1, 1 + program.num_ahead):
            active = [(index, row) for index, row in active if len(row.next_specs) >= step and row.job.pending]
            of_rows = results.of_step(step).at([index for index, _ in active])
            samples = decode([row.next_specs[step - 1] for _, row in active], of_rows)
            active = [entry for entry, value in zip(active, samples, strict=True) if value is not None]
            for (_, row), value in zip(active, filter(lambda each: each is not None, samples), strict=True):
                row.job.sequence.tokens += row.job.pending
                row.job.pending.clear()
                row.job.absorb([value])

    def _decoded(
        self, specs: list[SampleSpec], program: Program, results: Results, step: int
    ) -> list[tuple[Sample, RowLogprobs | None]]:
        samples = decode(specs, results.of_step(step))
        row_logprobs: list[RowLogprobs | None] = [None] * len(specs)
        left = [row for row, spec in enumerate(specs) if samples[row] is None or spec.wants_logprobs]
        for row, sample, seen in sample_remainder(self._sampler, program.logits[step], specs, left):
            samples[row], row_logprobs[row] = sample, seen
        return list(zip(samples, row_logprobs, strict=True))

    def _hand_over(self, job: Job, mine: list[tuple[Sample, RowLogprobs | None]]) -> None:
        job.absorb_logprobs([logprobs for _, logprobs in mine if logprobs is not None])
        job.absorb([value for value, _ in mine])

    def _program_for(self, batch: Batch, num_ahead: int) -> Program:
        rounded = self._graph_shapes.rounded(batch, self._batch_invariant, num_ahead)
        if rounded is not None:
            return self._program(*rounded)
        shape = ForwardShape.of(batch, self._batch_invariant)
        logits = (
            self._logits
            if shape.num_wanted <= len(self._logits)
            else self._logits.new_zeros((shape.num_wanted, self._logits.shape[1]))
        )
        return Program(self._model, self._attention, shape, 0, logits, self._device)

    def _program(self, shape: ForwardShape, num_ahead: int) -> Program:
        key = shape, num_ahead
        if key not in self._programs:
            self._programs[key] = Program(self._model, self._attention, shape, num_ahead, self._logits, self._device)
        return self._programs[key]
