"""The remainder: rows of a step that the kernels do not sample or score. torch does this, for some rows at a time.

One row of 128,000 logits in float64 takes 1 MB several times over, and a prompt's log-probabilities need hundreds of
rows in one step.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import torch

from paceline.engine.sampling.logprobs import RowLogprobs, compute_logprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Sample, SampleSpec

# Rows at a time.
REMAINDER_ROWS = 32


def sample_remainder(
    sampler: Sampler, logits: torch.Tensor, specs: Seq[SampleSpec], rows: Seq[int]
) -> Iterator[tuple[int, Sample, RowLogprobs | None]]:
    """Samples and scores `rows` of logits: [at least len(specs), vocab_size] float32, which do not change.

    Gives each row with its sample and its log-probabilities, if the spec asks for them.
    """
    for first in range(0, len(rows), REMAINDER_ROWS):
        some = rows[first : first + REMAINDER_ROWS]
        own, own_specs = logits[list(some)], [specs[row] for row in some]
        samples = sampler.sample(own, own_specs)
        yield from zip(some, samples, compute_logprobs(own, own_specs, samples), strict=True)
