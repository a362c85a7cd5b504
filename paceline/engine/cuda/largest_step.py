"""The largest step: the most memory that a step takes beside weights, cache and graphs."""

from typing import Any

import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graphs.program import Program
from paceline.engine.cuda.model import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.sampling.remainder import REMAINDER_ROWS, sample_remainder
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import GumbelMax, SampleComplement, SampleSpec, SampleTruncated, TokensBefore
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.sampling import SamplingParams

# Looks at the whole vocabulary, because no token is too unlikely, and has penalties and log-probabilities.
DEAREST = SamplingParams(temperature=1.0, min_p=1e-300, repetition_penalty=1.1)
_COMMON: dict[str, Any] = {"before": TokensBefore([0], [0]), "num_logprobs": 1, "wants_entropy": True}


def run_largest_step(
    model: CudaLlama, trial: CudaPagedAttention, num_rows: int, batch_invariant: bool, device: torch.device
) -> None:
    """Runs a step of `num_rows` rows at the end of the longest context, all of whose logits matter.

    `trial`: a cache of at least `num_rows` positions and one block more. The values do not matter, so the block table
    repeats its blocks.
    """
    num_blocks = trial.num_blocks - 1
    blocks = [index % num_blocks for index in range(-(-model.max_model_len // trial.block_size))]
    builder = BatchBuilder()
    builder.add([0] * num_rows, model.max_model_len - num_rows, blocks, [True] * num_rows)
    batch = builder.build(num_rows)
    logits = model.new_logits(num_rows)
    program = Program(model, trial, ForwardShape.of(batch, batch_invariant), 0, logits, device)
    program.fill(batch, [], [], [])
    program.run()
    some = range(min(num_rows, REMAINDER_ROWS))
    for spec in _dearest_specs():
        list(sample_remainder(Sampler(TorchSampler()), program.logits[0], [spec] * len(some), some))


def _dearest_specs() -> list[SampleSpec]:
    """One of each kind that needs arrays of float64."""
    support = torch.arange(1).numpy()
    return [
        SampleTruncated(DEAREST, (), 0.5, 4096, 1.0, **_COMMON),
        GumbelMax(DEAREST, (), 1, **_COMMON),
        SampleComplement(DEAREST, (), support, 0.5, **_COMMON),
    ]
