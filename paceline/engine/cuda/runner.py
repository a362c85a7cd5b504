"""The CUDA runner: an engine step runs one program.

A small batch is padded to a shape with a captured graph. If a job's next steps only feed the tokens they sample
(`Job.multi_step_specs`), one program runs several steps.
"""

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np
import torch

from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting, SlottedStates
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graph_shapes import GraphShapes
from paceline.engine.cuda.llama import NO_STATES, CudaModel
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.program import Program
from paceline.engine.cuda.sampling.encoding import Results, decode, sample_remainder, without_uncodable
from paceline.engine.cuda.sampling.spec_table import Found
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.engine.scheduling.job import Job
from paceline.errors import DeviceLost

log = logging.getLogger(__name__)


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


class _Share(NamedTuple):
    """What a step does for one job."""

    job: Job
    num_tokens: int
    # Its sampled rows among all of the step: first_row … end_row - 1.
    first_row: int
    end_row: int
    # The sample specs of the next steps; the first of them feeds the token that the last row samples.
    next_specs: list[SampleSpec]

    @property
    def rows(self) -> range:
        return range(self.first_row, self.end_row)

    @property
    def last_row(self) -> int:
        return self.end_row - 1


def _gather(shares: list[tuple[Job, int]]) -> tuple[list[_Share], list[SampleSpec], Batch]:
    """Returns what the step does for each job, the specs of all sampled rows, and the batch."""
    builder = BatchBuilder()
    specs: list[SampleSpec] = []
    asked: list[_Share] = []
    for job, num_tokens in shares:
        tokens, wanted = job.pending[:num_tokens], job.specs(num_tokens)
        builder.add(tokens, job.sequence.length, job.sequence.blocks, [spec is not None for spec in wanted])
        first_row = len(specs)
        specs += [spec for spec in wanted if spec is not None]
        goes_on = num_tokens == len(job.pending) and len(specs) > first_row
        next_specs = job.multi_step_specs() if goes_on else []
        asked.append(_Share(job, num_tokens, first_row, len(specs), next_specs))
    return asked, specs, builder.build(builder.num_tokens)


def _fill(program: Program, batch: Batch, codable: Seq[SampleSpec | None], asked: Seq[_Share]) -> None:
    if program.num_ahead == 0:
        program.fill(batch, codable, [], [])
        return
    owners: list[int] = []
    ahead: list[Seq[SampleSpec]] = [()] * len(codable)
    for index, share in enumerate(asked):
        owners += [index] * len(share.rows)
        if share.next_specs:
            ahead[share.last_row] = share.next_specs[: program.num_ahead]
    program.fill(batch, codable, owners, ahead)


def _absorb_next_steps(asked: Seq[_Share], num_ahead: int, results: Results) -> None:
    # Next steps after a row that the kernels could not sample are invalid; later engine steps repeat them.
    is_complete = results.numbers[0, :, Found.IS_COMPLETE].tolist()
    active = [share for share in asked if share.next_specs and is_complete[share.last_row]]
    for step in range(1, 1 + num_ahead):
        active = [share for share in active if len(share.next_specs) >= step and share.job.pending]
        specs: list[SampleSpec | None] = [None] * asked[-1].end_row
        for share in active:
            specs[share.last_row] = share.next_specs[step - 1]
        samples = decode(specs, results.of_step(step))
        active = [share for share in active if samples[share.last_row] is not None]
        for share in active:
            share.job.take(len(share.job.pending), [samples[share.last_row]], [])


class CudaRunner:
    """Runs engine steps, on the worker's thread only."""

    def __init__(
        self,
        model: CudaModel,
        attention: CudaPagedAttention,
        batch_invariant: bool,
        graph_shapes: GraphShapes | None,
        device: torch.device,
        drafting: CudaHeadDrafting | None = None,
    ) -> None:
        """`drafting`: by the model's draft head."""
        self._model, self._attention, self._drafting = model, attention, drafting
        self._batch_invariant, self._device, self._graph_shapes = batch_invariant, device, graph_shapes
        self._sampler = Sampler(TorchSampler())
        self._programs: dict[tuple[ForwardShape, int], Program] = {}
        # The program of the last step.
        self.last: Program | None = None
        # All programs share the logits, their largest array: only one program runs at a time.
        self._logits = torch.zeros(
            (graph_shapes.most_logits() if graph_shapes else 0, model.config.vocab_size), device=device
        )
        # And the states that the draft head reads.
        self._num_state_rows = graph_shapes.most_rows() if graph_shapes else 0
        self._states = NO_STATES if drafting is None else drafting.new_states(self._num_state_rows)

    @property
    def model_bytes(self) -> int:
        return self._model.num_bytes

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        if self._device.type != "cuda":
            return
        padding_block = self._attention.num_blocks - 1
        if self._drafting is not None:
            # Here, and not in the first round, Triton compiles.
            self._drafting.measure(padding_block)
        if self._graph_shapes is None:
            return
        shapes, pool = list(self._graph_shapes.shapes()), torch.cuda.graph_pool_handle()
        # The rows go to the last block, which no sequence holds.
        padding_span = [TokenSpan(0, 1, 0, [padding_block])]
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
        asked, specs, batch = _gather(shares)
        codable = without_uncodable(specs)
        program = self.last = self._program_for(batch, self._steps_ahead(codable, asked))
        _fill(program, batch, codable, asked)
        results = program.run()
        samples, row_logprobs = self._decoded(specs, codable, program, results)
        for share in asked:
            of_job = [row_logprobs[row] for row in share.rows if row in row_logprobs]
            share.job.take(share.num_tokens, samples[share.first_row : share.end_row], of_job)
        if program.num_ahead:
            _absorb_next_steps(asked, program.num_ahead, results)
        if self._drafting is not None and any(job.sequence.options.uses_draft_head for job, _ in shares):
            self._draft(self._drafting, shares, batch, SlottedStates(program.states, program.staging.plan.slots))

    def _draft(
        self, drafting: CudaHeadDrafting, shares: list[tuple[Job, int]], batch: Batch, states: SlottedStates
    ) -> None:
        """Drafts without risk: the jobs have their results already, and a head that fails is not used again."""
        try:
            drafting.run(shares, batch, states)
        except Exception as error:
            raise_if_lost(self._device, error)
            log.exception("the draft head failed; the target goes on without it")
            self._drafting, self._states = None, NO_STATES

    def _steps_ahead(self, codable: Seq[SampleSpec | None], asked: Seq[_Share]) -> int:
        """Returns the most next steps that a job asks for, 0 if a spec can't be encoded."""
        most = max(len(share.next_specs) for share in asked)
        if most == 0 or self._graph_shapes is None:
            return 0
        ahead = without_uncodable(spec for share in asked for spec in share.next_specs)
        return 0 if any(spec is None for spec in (*codable, *ahead)) else self._graph_shapes.multi_steps(most)

    def _decoded(
        self, specs: Seq[SampleSpec], codable: Seq[SampleSpec | None], program: Program, results: Results
    ) -> tuple[list[Sample], dict[int, RowLogprobs]]:
        """Returns the first step's samples by row, and log-probabilities of the rows that ask for them."""
        samples = decode(codable, results.of_step(0))
        row_logprobs: dict[int, RowLogprobs] = {}
        # Those that want log-probabilities too: they can't be encoded.
        left = [row for row, sample in enumerate(samples) if sample is None]
        for row, sample, seen in sample_remainder(self._sampler, program.logits[0], specs, left):
            samples[row] = sample
            if seen is not None:
                row_logprobs[row] = seen
        return samples, row_logprobs

    def _program_for(self, batch: Batch, num_ahead: int) -> Program:
        shapes = self._graph_shapes
        rounded = None if shapes is None else shapes.rounded(batch, self._batch_invariant, num_ahead)
        if rounded is not None:
            return self._program(*rounded)
        shape = ForwardShape.of(batch, self._batch_invariant)
        logits = (
            self._logits
            if shape.num_wanted <= len(self._logits)
            else self._logits.new_zeros((shape.num_wanted, self._logits.shape[1]))
        )
        states = self._states
        if self._drafting is not None and shape.num_rows > self._num_state_rows:
            states = self._drafting.new_states(shape.num_rows)
        return Program(self._model, self._attention, shape, 0, logits, self._device, states)

    def _program(self, shape: ForwardShape, num_ahead: int) -> Program:
        key = shape, num_ahead
        if key not in self._programs:
            self._programs[key] = Program(
                self._model, self._attention, shape, num_ahead, self._logits, self._device, self._states
            )
        return self._programs[key]
