"""The sampler and its backends. A row's sample and its backend depend only on that row and its spec."""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from typing import Any, Protocol

import torch

from paceline.engine.sampling.logits_processors import process_logits
from paceline.engine.sampling.specs import Sample, SampleSpec

# Samples rows whose specs are all of one kind; logits: [num_specs, vocab_size].
SampleAlike = Callable[[torch.Tensor, list[Any]], Seq[Sample]]


class SamplerBackend(Protocol):
    def supports(self, spec: SampleSpec) -> bool: ...

    def sample(self, logits: torch.Tensor, specs: Seq[Any]) -> Seq[Sample]:
        """logits: [num_specs, vocab_size] float32. Returns None for a row that the next backend must sample."""
        ...


def sample_by_kind(
    samplers: Mapping[type[SampleSpec], SampleAlike], logits: torch.Tensor, specs: Seq[SampleSpec]
) -> list[Sample]:
    results: list[Sample] = [None] * len(specs)
    for kind, sample_alike in samplers.items():
        rows = [row for row, spec in enumerate(specs) if type(spec) is kind]
        if rows:
            chosen = logits if len(rows) == len(specs) else logits[rows]
            for row, sample in zip(rows, sample_alike(chosen, [specs[row] for row in rows]), strict=True):
                results[row] = sample
    return results


class Sampler:
    def __init__(self, *backends: SamplerBackend) -> None:
        """`backends`: fastest first; the last must support every spec."""
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
