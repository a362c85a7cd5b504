"""The sampler: a batch of logits and sample specs -> samples, computed on the device of the logits.

Sampling is batch invariant: each row's sample depends only on that row and its spec. The choice of the backend for a
row depends only on these two as well.
"""

from collections.abc import Sequence as Seq

import torch

from paceline.engine.sampling.backends import SamplerBackend
from paceline.engine.sampling.logits_processors import process_logits
from paceline.engine.sampling.specs import Sample, SampleSpec


class Sampler:
    """Samples each row with the first of its backends that supports the row's spec."""

    def __init__(self, *backends: SamplerBackend) -> None:
        """`backends`: the fastest first; the last one must support every spec."""
        self._backends = backends

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        """logits: [num_specs, vocab_size] float32. Logits processors change them in place."""
        process_logits(logits, specs)
        results: list[Sample] = [None] * len(specs)
        left = list(range(len(specs)))
        for backend in self._backends:
            rows = [row for row in left if backend.supports(specs[row])]
            if rows:
                chosen = logits if len(rows) == len(specs) else logits[rows]
                for row, sample in zip(rows, backend.sample(chosen, [specs[row] for row in rows]), strict=True):
                    results[row] = sample
            left = [row for row in left if results[row] is None]
            if not left:
                break
        return results
