"""Some rows of some jobs through one program: what `engine.runner` does, on a GPU.

A round of few rows is rounded up to a shape whose graph was captured at the start; a prompt's chunk runs in a shape
of its own, launch by launch. Where all that a job still wants is to feed what it draws, its steps run in one go.
"""

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.attention import Span
from paceline.engine.batch import Batch, BatchBuilder
from paceline.engine.cuda.attention import PagedAttention
from paceline.engine.cuda.drawing import decode, is_codable
from paceline.engine.cuda.model import GpuLlama
from paceline.engine.cuda.plan import FEW_ROWS, PART_TOKENS, Shape
from paceline.engine.cuda.program import Program, Results, fits, ladder
from paceline.engine.draws import Draw, Drawn
from paceline.engine.job import Job
from paceline.engine.observations import Observation, observe
from paceline.engine.sampler import Sampler


@dataclass(frozen=True, slots=True)
class Captures:
    """For which shapes there are graphs."""

    # Most rows, and most positions of a sequence.
    num_rows: int
    num_tokens: int
    # Most steps ahead.
    num_ahead: int

    def shapes(self) -> Iterator[tuple[Shape, int]]:
        """With so many steps ahead, the largest first: the others fit into the memory it took."""
        parts = [1 << power for power in range(max(1, -(-self.num_tokens // PART_TOKENS)).bit_length())]
        for num_rows in reversed(ladder(self.num_rows)):
            for num_parts in reversed(parts):
                for num_ahead in range(self.num_ahead, -1, -1):
                    yield Shape(num_rows, num_rows, num_rows, num_parts), num_ahead


@dataclass(frozen=True, slots=True)
class _Row:
    """A row whose logits matter."""

    job: Job
    # Of the job's sequence in the batch.
    rank: int
    draw: Draw
    # The draws of the steps ahead.
    coming: list[Draw]


class GpuRunner:
    """Runs engine steps. Belongs to the worker's thread."""

    def __init__(
        self,
        model: GpuLlama,
        attention: PagedAttention,
        num_blocks: int,
        same_bits: bool,
        captures: Captures,
        device: torch.device,
    ) -> None:
        """`captures`: for a device without graphs, shapes are rounded up all the same."""
        self._model, self._attention, self._num_blocks = model, attention, num_blocks
        self._same_bits, self._device = same_bits, device
        self._sampler = Sampler()
        self._captures = captures
        self._programs: dict[tuple[Shape, int], Program] = {}
        self._shapes = list(captures.shapes())
        self._row_counts = sorted({shape.num_rows for shape, _ in self._shapes})
        self._part_counts = sorted({shape.num_parts for shape, _ in self._shapes})

    @torch.inference_mode()
    def warm_up(self, progress: Callable[[str], None] = lambda _: None) -> None:
        """Captures all graphs."""
        if self._device.type != "cuda":
            return
        for done, (shape, num_ahead) in enumerate(self._shapes):
            progress(f"capturing graph {done + 1} of {len(self._shapes)}")
            program = self._program(shape, num_ahead)
            # Nobody's block: what it writes belongs to no sequence.
            nobody = Batch(np.zeros(1, np.int64), [Span(0, 1, 0, [self._num_blocks - 1])], np.zeros(1, np.int64))
            program.fill(nobody, [], [], [])
            program.capture()

    @torch.inference_mode()
    def step(self, shares: list[tuple[Job, int]]) -> None:
        """Feeds the first so many pending rows of each job, and lets each absorb its results."""
        builder = BatchBuilder()
        rows: list[_Row] = []
        for rank, (job, num_rows) in enumerate(shares):
            wanted = job.draws(num_rows)
            builder.add(
                job.pending[:num_rows], job.sequence.length, job.sequence.blocks, [draw is not None for draw in wanted]
            )
            coming = job.coming_draws() if num_rows == len(job.pending) else []
            drawn = [draw for draw in wanted if draw is not None]
            # Only the last draw of a job is of a token that it feeds.
            rows += [_Row(job, rank, draw, coming if draw is drawn[-1] else []) for draw in drawn]
        batch = builder.build(builder.num_rows)
        num_ahead = self._steps_ahead(rows)
        program = self._program_for(batch, num_ahead)
        ahead = [row.coming[: program.num_ahead] for row in rows]
        program.fill(batch, [row.draw for row in rows], [row.rank for row in rows], ahead)
        results = program.run()
        first = iter(zip(rows, self._decoded([row.draw for row in rows], program, results, 0), strict=True))
        for job, num_rows in shares:
            job.sequence.tokens += job.pending[:num_rows]
            del job.pending[:num_rows]
            self._hand_over(job, [next(first)[1] for row in rows if row.job is job])
        self._follow(rows, program, results)

    def _steps_ahead(self, rows: Seq[_Row]) -> int:
        """How many more steps may run in one go: as many as any job wants, if tables can say all their draws."""
        if not all(map(is_codable, (draw for row in rows for draw in (row.draw, *row.coming)))):
            return 0
        return min(self._captures.num_ahead, max((len(row.coming) for row in rows), default=0))

    def _follow(self, rows: Seq[_Row], program: Program, results: Results) -> None:
        """What was drawn in the steps ahead, as if each had been a step of its own."""
        going = list(enumerate(rows))
        for step in range(1, 1 + program.num_ahead):
            going = [(place, row) for place, row in going if len(row.coming) >= step and row.job.pending]
            of_rows = results.of_step(step).at([place for place, _ in going])
            drawn = decode([row.coming[step - 1] for _, row in going], of_rows)
            for (_, row), value in zip(going, drawn, strict=True):
                if value is None:
                    # What came after it was drawn from nothing: this job goes on by steps of its own.
                    continue
                row.job.sequence.tokens += row.job.pending
                row.job.pending.clear()
                row.job.absorb([value])
            going = [entry for entry, value in zip(going, drawn, strict=True) if value is not None]

    def _decoded(
        self, draws: list[Draw], program: Program, results: Results, step: int
    ) -> list[tuple[Drawn, Observation | None]]:
        """All draws of a step, those that the table could not make drawn again from its logits."""
        drawn = decode(draws, results.of_step(step))
        observations: list[Observation | None] = [None] * len(draws)
        left = [row for row, draw in enumerate(draws) if drawn[row] is None or draw.is_observed]
        if left:
            logits, others = program.logits[step][left], [draws[row] for row in left]
            again = self._sampler.sample(logits, others)
            for row, value, seen in zip(left, again, observe(logits, others, again), strict=True):
                drawn[row], observations[row] = value, seen
        return list(zip(drawn, observations, strict=True))

    def _hand_over(self, job: Job, mine: list[tuple[Drawn, Observation | None]]) -> None:
        job.observe([observation for _, observation in mine if observation is not None])
        job.absorb([value for value, _ in mine])

    def _program_for(self, batch: Batch, num_ahead: int) -> Program:
        exact = Shape.of(batch, self._same_bits, num_ahead)
        num_rows, num_parts = fits(exact.num_rows, self._row_counts), fits(exact.num_parts, self._part_counts)
        # A sequence with more rows than a tile has several.
        if num_rows is None or num_parts is None or exact.tile_rows != FEW_ROWS or exact.num_tiles > num_rows:
            return Program(self._model, self._attention, self._num_blocks, exact, 0, self._device)
        return self._program(Shape(num_rows, num_rows, num_rows, num_parts), num_ahead)

    def _program(self, shape: Shape, num_ahead: int) -> Program:
        key = shape, num_ahead
        if key not in self._programs:
            self._programs[key] = Program(
                self._model, self._attention, self._num_blocks, shape, num_ahead, self._device
            )
        return self._programs[key]
