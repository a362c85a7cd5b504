"""The interface of a sampler backend (see `sampler`)."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch

from paceline.engine.sampling.specs import Sample, SampleSpec

# Samples rows whose specs are all of one kind; logits: [num_specs, vocab_size].
SampleAlike = Callable[[torch.Tensor, list[Any]], Seq[Sample]]


class SamplerBackend(Protocol):
    """One way to sample from logits."""

    def supports(self, spec: SampleSpec) -> bool:
        """Whether the backend knows this kind of spec."""
        ...

    def sample(self, logits: torch.Tensor, specs: Seq[Any]) -> Seq[Sample]:
        """logits: [num_specs, vocab_size] float32. None for a row that the next backend must sample."""
        ...


def sample_by_kind(
    samplers: Mapping[type[SampleSpec], SampleAlike], logits: torch.Tensor, specs: Seq[SampleSpec]
) -> list[Sample]:
    """Samples the rows of each kind of spec together."""
    results: list[Sample] = [None] * len(specs)
    for kind, sample_alike in samplers.items():
        rows = [row for row, spec in enumerate(specs) if type(spec) is kind]
        if rows:
            chosen = logits if len(rows) == len(specs) else logits[rows]
            for row, sample in zip(rows, sample_alike(chosen, [specs[row] for row in rows]), strict=True):
                results[row] = sample
    return results
