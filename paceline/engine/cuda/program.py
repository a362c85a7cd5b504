"""A program: a forward pass in fixed shapes, sampling, and further steps that feed the sampled tokens.

A captured program is replayed as one CUDA graph.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import Field, ForwardPlan, ForwardShape, Mirror, Staging
from paceline.engine.cuda.llama import NO_STATES, CudaModel, States
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.sampling.encoding import Results, encode
from paceline.engine.cuda.sampling.spec_table import MOST, NUM_FOUND, TOKEN, Column, Found, SampleTable, SpecTable
from paceline.engine.cuda.sampling.token_selection import sample_all
from paceline.engine.sampling.specs import SampleComplement, SampleSpec, SampleTruncated

# Forwards before a capture: in these Triton compiles, and torch's libraries choose their kernels.
WARM_UPS = 2


class Program:
    def __init__(
        self,
        model: CudaModel,
        attention: CudaPagedAttention,
        shape: ForwardShape,
        num_ahead: int,
        logits: torch.Tensor,
        device: torch.device,
        states: States = NO_STATES,
    ) -> None:
        """logits: [at least (1 + num_ahead) * num_wanted, vocab_size] float32, for `num_ahead` next steps.

        states: what a draft head reads, at least as many rows as the shape's.
        """
        self.shape, self.num_ahead = shape, num_ahead
        self.states = {layer: rows[: shape.num_rows] for layer, rows in states.items()}
        self._model, self._attention, self._device = model, attention, device
        steps, wanted = 1 + num_ahead, shape.num_wanted
        self.staging = Staging(
            shape, attention.num_blocks, attention.block_size, device,
            more=[Field((steps, wanted, len(Column)), torch.float64), Field((2, wanted), torch.int32)],
        )  # fmt: skip
        # Specs; for each wanted row the index of its sequence, and the number of next steps that it takes part in.
        self._numbers, self._continuations = self.staging.more_on_host
        self._trash_slot = (attention.num_blocks - 1) * attention.block_size
        # Large, so they move only if a row needs them: supports of OUTSIDE specs, and samples' ids and probabilities.
        self._supports = Mirror([Field((steps, wanted, MOST), torch.int32)], device)
        self._distributions = Mirror(
            [Field((steps, wanted, MOST), torch.int32), Field((steps, wanted, MOST), torch.float32)], device
        )
        self._wants_distributions = False
        self._found = Mirror([Field((steps, wanted, len(Found)), torch.float64)], device)
        # Without a -1, which torch refuses if no row is wanted.
        self.logits = logits[: steps * wanted].view(steps, wanted, logits.shape[1])
        self._graph: torch.cuda.CUDAGraph | None = None

    def fill(
        self, batch: Batch, specs: Seq[SampleSpec | None], sequence_indices: Seq[int], next_specs: Seq[Seq[SampleSpec]]
    ) -> None:
        """Copies a batch.

        For each wanted row: its spec (None if that can't be encoded); if there are next steps, also its sequence's
        index, and their specs.
        """
        [supports], vocab_size = self._supports.on_host, self._model.config.vocab_size
        self.staging.write(batch)
        encode(specs, vocab_size, self._numbers[0], supports[0])
        for step in range(self.num_ahead):
            # A sequence that does not go on repeats its first spec; the sample is not used.
            of_step = [each[step] if len(each) > step else first for first, each in zip(specs, next_specs, strict=True)]
            encode(of_step, vocab_size, self._numbers[1 + step], supports[1 + step])
        if self.num_ahead:
            self._continuations[:] = 0
            self._continuations[0, : len(sequence_indices)] = sequence_indices
            self._continuations[1, : len(next_specs)] = [len(each) for each in next_specs]
        self.staging.send()
        kinds = {type(spec) for of_row in (specs, *next_specs) for spec in of_row}
        if SampleComplement in kinds:
            self._supports.send()
        self._wants_distributions = not kinds.isdisjoint((SampleComplement, SampleTruncated))

    def run(self) -> Results:
        self.launch()
        if self._wants_distributions:
            self._distributions.fetch()
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return Results(*self._found.on_host, *self._distributions.on_host)

    def launch(self) -> None:
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute()

    def capture(self, pool: Any) -> None:
        """Captures a graph of a valid batch. `pool`: memory that all graphs share."""
        for _ in range(WARM_UPS):
            self._compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._compute()
        self._graph = graph

    def _compute(self) -> None:
        first = plan = self.staging.plan
        numbers, (sequence_indices, num_steps) = self.staging.more_on_device
        [supports], [found], (ids, probs) = (
            mirror.on_device for mirror in (self._supports, self._found, self._distributions)
        )
        for step in range(1 + self.num_ahead):
            samples = SampleTable(found[step], ids[step], probs[step])
            logits = self._model.forward(plan, self._attention, self.logits[step], self.states)
            sample_all(logits, SpecTable(numbers[step], supports[step]), samples)
            if step < self.num_ahead:
                size = self._attention.block_size
                plan = plan_next_step(first, samples, sequence_indices, num_steps, step + 1, size, self._trash_slot)
        self._found.fetch()


@triton.jit(do_not_specialize=["step", "table_width"])
def _plan_next_step(
    samples, sequence_indices, num_steps, first_positions, wanted, tables, tokens, positions, slots, rows, tiles,
    step, table_width, trash_slot, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    sequence_index = tl.load(sequence_indices + row)
    goes_on = tl.load(num_steps + row) >= step
    position = tl.where(goes_on, tl.load(first_positions + tl.load(wanted + row)) + step, -1)
    at = tl.maximum(position, 0)
    block = tl.load(tables + sequence_index.to(tl.int64) * table_width + at // BLOCK_TOKENS)
    tl.store(tokens + row, tl.load(samples + row * NUM_FOUND + TOKEN).to(tl.int32))
    tl.store(positions + row, position)
    tl.store(slots + row, tl.where(goes_on, block * BLOCK_TOKENS + at % BLOCK_TOKENS, trash_slot))
    tl.store(rows + row, row)
    tl.store(tiles + row * 4, row)
    # A sequence that does not go on has position -1: its row attends to nothing.
    tl.store(tiles + row * 4 + 1, 1)
    tl.store(tiles + row * 4 + 2, position)
    tl.store(tiles + row * 4 + 3, sequence_index)


def plan_next_step(
    first: ForwardPlan, samples: SampleTable, sequence_indices: torch.Tensor, num_steps: torch.Tensor, step: int,
    block_size: int, trash_slot: int,
) -> ForwardPlan:  # fmt: skip
    """Plans step `step` after `first`, which feeds the tokens of `samples`.

    sequence_indices: [num_wanted] int32, each wanted row's sequence; num_steps: [num_wanted] int32, how many next steps
    each takes part in.
    """
    [count] = first.wanted.shape
    tokens, positions, slots, rows = (
        torch.empty(count, dtype=torch.int32, device=sequence_indices.device) for _ in range(4)
    )
    tiles = torch.empty((count, 4), dtype=torch.int32, device=sequence_indices.device)
    _plan_next_step[(count,)](
        samples.numbers, sequence_indices, num_steps, first.positions, first.wanted, first.tables,
        tokens, positions, slots, rows, tiles, step, first.tables.shape[1], trash_slot, BLOCK_TOKENS=block_size,
    )  # fmt: skip
    return replace(first, tokens=tokens, positions=positions, slots=slots, wanted=rows, tiles=tiles)
