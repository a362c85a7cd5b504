"""Samples from a head's logits, which may be those of some tokens only."""

from collections.abc import Iterable, Sequence

import torch

from paceline.engine.cpu.head import Head
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.logprobs import RowLogprobs, with_confidence
from paceline.engine.sampling.shared_vocabulary import sample_rows
from paceline.engine.sampling.specs import Sample, SampleSpec

# float32 logits at a time, so that memory stays within `backend.RESERVE_BYTES` whatever is asked of how many tokens: samplers
# work on several copies, in float64.
SAMPLED_BYTES = 16 << 20


def parts(count: int, most: int) -> list[slice]:
    """Splits `count` rows into parts of at most `most`, or of one."""
    size = max(1, most)
    return [slice(first, first + size) for first in range(0, count, size)]


class HeadSampler:
    def __init__(self, head: Head) -> None:
        self._head = head
        self._sampler = CpuSampler()
        # For a head that knows only some tokens: samples from their logits.
        self._known_sampler = None if head.is_full_vocab else CpuSampler(head.ids)

    def sample(
        self, known: torch.Tensor, specs: Sequence[SampleSpec], first: int = 0
    ) -> Iterable[tuple[Sample, RowLogprobs | None]]:
        """known: the head's last product's rows from `first` on, [num_specs, head_size]."""
        if self._known_sampler is not None and not any(spec.needs_whole_vocab for spec in specs):
            found = with_confidence(known, specs, self._known_sampler.sample(known, specs))
            return ((each, None) for each in self._head.with_ids(found))
        return sample_rows(self._sampler, self._head.to_full_vocab(known, first), specs)
