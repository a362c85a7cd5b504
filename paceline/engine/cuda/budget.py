"""The GPU memory budget."""

from dataclasses import dataclass
from typing import Any

import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.llama import NO_STATES, CudaModel
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.program import Program
from paceline.engine.cuda.sampling.encoding import REMAINDER_ROWS, sample_remainder
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import GumbelMax, SampleComplement, SampleSpec, SampleTruncated, TokensBefore
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.errors import ConfigError
from paceline.sampling_params import SamplingParams

MIB = 2**20
# For the workspaces of torch's libraries, and for gaps between tensors.
RESERVE_BYTES = 256 * MIB


@dataclass(frozen=True, slots=True)
class MemoryBudget:
    """The memory budget of one server, in bytes."""

    # The whole GPU.
    total: int
    # The part of `total` that this server may use.
    fraction: float
    weights: int
    # Peak memory of the largest step.
    activations: int
    # Captured graphs, with their arrays of fixed shapes.
    graphs: int
    # One block of the KV cache.
    block: int
    num_blocks: int

    @classmethod
    def fit(
        cls, total: int, fraction: float, weights: int, activations: int, graphs: int, block: int, cache: int | None
    ) -> "MemoryBudget":
        """Computes the number of blocks. `cache`: bytes; None takes all that is left.

        Raises ConfigError with the budget if two blocks, or `cache` bytes, do not fit.
        """
        left = int(total * fraction) - weights - activations - graphs - RESERVE_BYTES
        num_blocks = (left if cache is None else cache) // block
        made = cls(total, fraction, weights, activations, graphs, block, max(0, num_blocks))
        if num_blocks < 2:
            option = "--gpu-memory-utilization" if cache is None else "--kv-cache-memory"
            raise ConfigError(f"the KV cache has fewer than two blocks; raise {option}; budget: {made}")
        if num_blocks * block > left:
            raise ConfigError(
                f"the KV cache does not fit; lower --kv-cache-memory or raise --gpu-memory-utilization; budget: {made}"
            )
        return made

    @property
    def used(self) -> int:
        return self.weights + self.activations + self.graphs + RESERVE_BYTES + self.block * self.num_blocks

    def __str__(self) -> str:
        return (
            f"weights {self.weights / MIB:,.0f} MiB, KV cache {self.block * self.num_blocks / MIB:,.0f} MiB "
            f"({self.num_blocks} blocks of {self.block / MIB:,.2f} MiB), activations {self.activations / MIB:,.0f} MiB, "
            f"graphs {self.graphs / MIB:,.0f} MiB, reserve {RESERVE_BYTES / MIB:,.0f} MiB: "
            f"{self.used / MIB:,.0f} MiB of {self.total * self.fraction / MIB:,.0f} "
            f"({self.fraction:g} of {self.total / MIB:,.0f})"
        )


# Keeps the whole vocabulary, with penalties and log-probabilities.
DEAREST = SamplingParams(temperature=1.0, min_p=1e-300, repetition_penalty=1.1)
_COMMON: dict[str, Any] = {"before": TokensBefore([0], [0]), "num_logprobs": 1, "wants_entropy": True}


def run_largest_step(
    model: CudaModel, trial: CudaPagedAttention, num_rows: int, batch_invariant: bool, device: torch.device,
    drafting: CudaHeadDrafting | None,
) -> None:  # fmt: skip
    """Runs a step of `num_rows` tokens at the end of the longest context, all with logits, and drafts behind them.

    `trial`: a cache with at least `num_rows` positions and one more block; `drafting`: with as many blocks.
    """
    num_blocks = trial.num_blocks - 1
    blocks = [index % num_blocks for index in range(-(-model.max_model_len // trial.block_size))]
    builder = BatchBuilder()
    builder.add([0] * num_rows, model.max_model_len - num_rows, blocks, [True] * num_rows)
    batch = builder.build(num_rows)
    logits, states = model.new_logits(num_rows), NO_STATES if drafting is None else drafting.new_states(num_rows)
    program = Program(model, trial, ForwardShape.of(batch, batch_invariant), 0, logits, device, states)
    program.fill(batch, [], [], [])
    program.run()
    some = range(min(num_rows, REMAINDER_ROWS))
    for spec in _dearest_specs():
        list(sample_remainder(Sampler(TorchSampler()), program.logits[0], [spec] * len(some), some))
    if drafting is not None:
        drafting.run_largest(num_rows, model.max_model_len)


def _dearest_specs() -> list[SampleSpec]:
    support = torch.arange(1).numpy()
    return [
        SampleTruncated(DEAREST, (), 0.5, 4096, 1.0, **_COMMON),
        GumbelMax(DEAREST, (), 1, **_COMMON),
        SampleComplement(DEAREST, (), support, 0.5, **_COMMON),
    ]
