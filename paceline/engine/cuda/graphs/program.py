"""A step in fixed shapes: a forward, its draws, and further steps that feed what was drawn, without the host.

On a GPU it is captured once and replayed: a launch for some hundreds of kernels (CUDA graphs). Elsewhere, and for
shapes that come once, it just runs.
"""

from collections.abc import Sequence as Seq
from typing import Any

import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graphs.next_step import follow
from paceline.engine.cuda.model import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.sampling.encoding import Results, encode
from paceline.engine.cuda.sampling.table import MOST, Column, Found, SampleTable, SpecTable
from paceline.engine.cuda.sampling.token_selection import sample_all
from paceline.engine.cuda.staging import Staging
from paceline.engine.sampling.specs import SampleSpec

# Forwards before a capture: Triton compiles, the library chooses its kernels.
WARM_UPS = 2


class Program:
    """One shape's arrays, and what is done with them."""

    def __init__(
        self,
        model: CudaLlama,
        attention: CudaPagedAttention,
        shape: ForwardShape,
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
        self._followers = _Pair((2, wanted), torch.int32, device)
        self.logits = logits[: steps * wanted].view(steps, wanted, -1)
        self._samples = (
            _Pair((steps, wanted, len(Found)), torch.float64, device),
            _Pair((steps, wanted, MOST), torch.int32, device),
            _Pair((steps, wanted, MOST), torch.float32, device),
        )
        self._graph: torch.cuda.CUDAGraph | None = None

    def fill(self, batch: Batch, specs: Seq[SampleSpec], ranks: Seq[int], coming: Seq[Seq[SampleSpec]]) -> None:
        """Sends a batch off. For each wanted row: its draw, its sequence's rank, and the draws of the steps ahead."""
        vocab_size = self._model.config.vocab_size
        self.staging.fill(batch)
        for step in range(1 + self.num_ahead):
            # Where a sequence does not go on, any draw will do.
            of_step = [([first, *each] + [first] * step)[step] for first, each in zip(specs, coming, strict=True)]
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
        return Results(*(pair.here for pair in self._samples))

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
        first = plan = self.staging.plan
        ranks, num_steps = self._followers.there
        for step in range(1 + self.num_ahead):
            samples = SampleTable(*(pair.there[step] for pair in self._samples))
            logits = self._model.forward(plan, self._attention, self.logits[step])
            sample_all(logits, SpecTable(self._numbers.there[step], self._supports.there[step]), samples)
            if step < self.num_ahead:
                size = self._attention.block_size
                plan = follow(first, samples, ranks, num_steps, step + 1, size, self._trash_slot)
        for pair in self._samples:
            pair.fetch()


class _Pair:
    """An array on the host and one on the device. Pinned, so that copies need not wait."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> None:
        self._host = torch.zeros(shape, dtype=dtype, pin_memory=device.type == "cuda")
        self.here: Array = self._host.numpy()
        self.there = torch.zeros(shape, dtype=dtype, device=device)

    def send(self) -> None:
        self.there.copy_(self._host, non_blocking=True)

    def fetch(self) -> None:
        self._host.copy_(self.there, non_blocking=True)
