"""A step in fixed shapes: a forward, its draws, and further steps that feed what was drawn, without the host.

On a GPU it is captured once and replayed: a launch for some hundreds of kernels (CUDA graphs). Elsewhere, and for
shapes that come once, it just runs.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from typing import Any

import torch

from paceline.engine.batch import Batch
from paceline.engine.cuda.attention import PagedAttention
from paceline.engine.cuda.drawing import MOST, Column, DrawnTable, DrawTable, draw_all, encode
from paceline.engine.cuda.model import GpuLlama
from paceline.engine.cuda.plan import Plan, Shape
from paceline.engine.cuda.staging import NOWHERE, Staging
from paceline.engine.draws import Draw
from paceline.engine.kernels.scalars import Array

# Forwards before a capture: Triton compiles, the library chooses its kernels.
WARM_UPS = 2


@dataclass(frozen=True, slots=True)
class Results:
    """What a step drew, on the host: like a DrawnTable's, with steps first."""

    tokens: Array  # [1 + num_ahead, num_wanted]
    ids: Array
    sizes: Array
    probs: Array
    masses: Array
    is_complete: Array

    def of_step(self, step: int) -> "Results":
        """One step's."""
        return Results(*(getattr(self, each.name)[step] for each in fields(self)))

    def at(self, rows: list[int]) -> "Results":
        """Some rows of one step's."""
        return Results(*(getattr(self, each.name)[rows] for each in fields(self)))


class Program:
    """One shape's arrays, and what is done with them."""

    def __init__(
        self,
        model: GpuLlama,
        attention: PagedAttention,
        shape: Shape,
        num_ahead: int,
        logits: torch.Tensor,
        device: torch.device,
    ) -> None:
        """`num_ahead`: steps after the first; logits: [at least (1 + num_ahead) * num_wanted, vocab_size], to work in."""
        self.shape, self.num_ahead = shape, num_ahead
        self._model, self._attention, self._device = model, attention, device
        self.staging = Staging(shape, attention.num_blocks, attention.block_size, device)
        self._trash_slot = (attention.num_blocks - 1) * attention.block_size
        steps, wanted = 1 + num_ahead, shape.num_wanted
        self._numbers = _Pair((steps, wanted, len(Column)), torch.float64, device)
        self._supports = _Pair((steps, wanted, MOST), torch.int32, device)
        # Of each wanted row its sequence's rank, and in how many of the steps ahead it goes on.
        self._followers = _Pair((2, wanted), torch.int64, device)
        self.logits = logits[: steps * wanted].view(steps, wanted, -1)
        # What was drawn, on the host.
        self._drawn: list[torch.Tensor] = []
        self._graph: torch.cuda.CUDAGraph | None = None

    def fill(self, batch: Batch, draws: Seq[Draw], ranks: Seq[int], coming: Seq[Seq[Draw]]) -> None:
        """Sends a batch off. For each wanted row: its draw, its sequence's rank, and the draws of the steps ahead."""
        vocab_size = self._model.config.vocab_size
        self.staging.fill(batch)
        for step in range(1 + self.num_ahead):
            # Where a sequence does not go on, any draw will do.
            of_step = [([first, *each] + [first] * step)[step] for first, each in zip(draws, coming, strict=True)]
            encode(of_step, vocab_size, self._numbers.here[step], self._supports.here[step])
        self._followers.here[:] = 0
        self._followers.here[0, : len(ranks)] = ranks
        self._followers.here[1, : len(coming)] = [len(each) for each in coming]
        for pair in (self._numbers, self._supports, self._followers):
            pair.send()

    def run(self) -> Results:
        """Computes; the one wait of a step is for its results."""
        self.launch()
        if self._device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        return Results(*(values.numpy() for values in self._drawn))

    def launch(self) -> None:
        """Has the device compute, and does not wait for it."""
        if self._graph is not None:
            self._graph.replay()
        else:
            self._compute()

    def capture(self, pool: Any) -> None:
        """Records a graph; what is in the arrays must be fit to run. `pool`: of memory that graphs, of which one runs
        at a time, have together."""
        for _ in range(WARM_UPS):
            self._compute()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            self._compute()
        self._graph = graph

    def _compute(self) -> None:
        plan = self.staging.plan
        drawn = [self._step(0, plan)]
        for step in range(1, 1 + self.num_ahead):
            drawn.append(self._step(step, self._following(plan, drawn[-1].tokens, step)))
        stacked = [torch.stack([getattr(each, part.name) for each in drawn]) for part in fields(DrawnTable)]
        if not self._drawn:
            self._drawn = [_host_array(tuple(each.shape), each.dtype, self._device) for each in stacked]
        for here, values in zip(self._drawn, stacked, strict=True):
            here.copy_(values, non_blocking=True)

    def _step(self, step: int, plan: Plan) -> DrawnTable:
        logits = self.logits[step].copy_(self._model.forward(plan, self._attention))
        return draw_all(logits, DrawTable(self._numbers.there[step], self._supports.there[step]))

    def _following(self, plan: Plan, tokens: torch.Tensor, step: int) -> Plan:
        """The plan of a step ahead: a row for each sequence that goes on, with what was drawn for it."""
        ranks, num_steps = self._followers.there
        size = self._attention.block_size
        goes_on = num_steps >= step
        positions = torch.where(goes_on, plan.positions[plan.wanted].long() + step, NOWHERE)
        blocks = plan.tables[ranks, positions.clamp_min(0) // size].long()
        slots = torch.where(goes_on, blocks * size + positions % size, self._trash_slot)
        rows = torch.arange(len(tokens), device=tokens.device)
        tiles = torch.stack([rows, goes_on.long(), positions, ranks], dim=1)
        return Plan(
            tokens.int(), positions.int(), slots.int(), rows.int(), tiles.int(), plan.tables,
            plan.num_parts, plan.tile_rows,
        )  # fmt: skip


class _Pair:
    """An array on the host and one on the device."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._host = _host_array(shape, dtype, device)
        self.here: Array = self._host.numpy()
        self.there = torch.zeros(shape, dtype=dtype, device=device)

    def send(self) -> None:
        self.there.copy_(self._host, non_blocking=True)


def _host_array(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Pinned, so that copies to and from the device need not wait."""
    return torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
