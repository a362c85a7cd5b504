"""A program: a forward in fixed shapes, sampling, and further steps that feed the sampled tokens.

A captured program is replayed as one CUDA graph.
"""

from collections.abc import Sequence as Seq
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import ForwardPlan, ForwardShape, Staging
from paceline.engine.cuda.model import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.sampling.encoding import Results, encode
from paceline.engine.cuda.sampling.table import MOST, NUM_FOUND, TOKEN, Column, Found, SampleTable, SpecTable
from paceline.engine.cuda.sampling.token_selection import sample_all
from paceline.engine.sampling.specs import SampleSpec

# Forwards before a capture: in these Triton compiles, and torch's libraries choose their kernels.
WARM_UPS = 2


class Program:
    def __init__(
        self,
        model: CudaLlama,
        attention: CudaPagedAttention,
        shape: ForwardShape,
        num_ahead: int,
        logits: torch.Tensor,
        device: torch.device,
    ) -> None:
        """logits: [at least (1 + num_ahead) * num_wanted, vocab_size] float32, for `num_ahead` next steps."""
        self.shape, self.num_ahead = shape, num_ahead
        self._model, self._attention, self._device = model, attention, device
        self.staging = Staging(shape, attention.num_blocks, attention.block_size, device)
        self._trash_slot = (attention.num_blocks - 1) * attention.block_size
        steps, wanted = 1 + num_ahead, shape.num_wanted
        self._numbers = _Pair((steps, wanted, len(Column)), torch.float64, device)
        self._supports = _Pair((steps, wanted, MOST), torch.int32, device)
        # For each wanted row the index of its sequence, and the number of next steps that it takes part in.
        self._continuations = _Pair((2, wanted), torch.int32, device)
        # Without a -1, which torch refuses if no row is wanted.
        self.logits = logits[: steps * wanted].view(steps, wanted, logits.shape[1])
        self._samples = (
            _Pair((steps, wanted, len(Found)), torch.float64, device),
            _Pair((steps, wanted, MOST), torch.int32, device),
            _Pair((steps, wanted, MOST), torch.float32, device),
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    def fill(
        self, batch: Batch, specs: Seq[SampleSpec], sequence_indices: Seq[int], next_specs: Seq[Seq[SampleSpec]]
    ) -> None:
        """Copies a batch. For each wanted row: its spec, its sequence's index, and the specs of the next steps."""
        vocab_size = self._model.config.vocab_size
        self.staging.fill(batch)
        for step in range(1 + self.num_ahead):
            # A sequence that does not go on repeats its first spec; the sample is not used.
            of_step = [([first, *each] + [first] * step)[step] for first, each in zip(specs, next_specs, strict=True)]
            encode(of_step, vocab_size, self._numbers.on_host[step], self._supports.on_host[step])
        self._continuations.on_host[:] = 0
        self._continuations.on_host[0, : len(sequence_indices)] = sequence_indices
        self._continuations.on_host[1, : len(next_specs)] = [len(each) for each in next_specs]
        for pair in (self._numbers, self._supports, self._continuations):
            pair.send()

    def run(self) -> Results:
        self.launch()
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return Results(*(pair.on_host for pair in self._samples))

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
        sequence_indices, num_steps = self._continuations.on_device
        for step in range(1 + self.num_ahead):
            samples = SampleTable(*(pair.on_device[step] for pair in self._samples))
            logits = self._model.forward(plan, self._attention, self.logits[step])
            sample_all(logits, SpecTable(self._numbers.on_device[step], self._supports.on_device[step]), samples)
            if step < self.num_ahead:
                size = self._attention.block_size
                plan = plan_next_step(first, samples, sequence_indices, num_steps, step + 1, size, self._trash_slot)
        for pair in self._samples:
            pair.fetch()


class _Pair:
    """An array in pinned host memory and its copy on the device."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._host_tensor = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.on_host: Array = self._host_tensor.numpy()
        self.on_device = torch.zeros(shape, dtype=dtype, device=device)

    def send(self) -> None:
        self.on_device.copy_(self._host_tensor, non_blocking=True)

    def fetch(self) -> None:
        self._host_tensor.copy_(self.on_device, non_blocking=True)


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
