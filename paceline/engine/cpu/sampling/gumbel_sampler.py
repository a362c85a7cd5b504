"""The Gumbel sampler: a backend of CPU kernels for specs without truncation. It takes a tenth of torch's time."""

from collections.abc import Sequence as Seq
from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.sampling import PART, choose_by_gumbel, choose_outside
from paceline.engine.cpu.sampling.scratch import Scratch
from paceline.engine.sampling.backends import SampleAlike, sample_by_kind
from paceline.engine.sampling.specs import ComplementSample, GumbelMax, Sample, SampleComplement, SampleSpec


class GumbelKernelSampler:
    """Supports GumbelMax and SampleComplement without top-k, top-p and min-p."""

    def __init__(self, ids: Array | None = None) -> None:
        """`ids`: [num_logits], the token of each logit, where GumbelMax gives its index; None: logit i is token i."""
        self._scratch = Scratch()
        self._ids = np.empty(0, np.uint32) if ids is None else ids.astype(np.uint32)

    @staticmethod
    def supports(spec: SampleSpec) -> bool:
        """Whether the kernels can sample for this spec."""
        is_known = isinstance(spec, GumbelMax | SampleComplement)
        return is_known and spec.sampling.is_untruncated

    def sample(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Sample]:
        """logits: [num_specs, vocab_size] float32."""
        samplers: dict[type[SampleSpec], SampleAlike] = {
            GumbelMax: self._gumbel_max,
            SampleComplement: self._sample_complement,
        }
        return sample_by_kind(samplers, logits, specs)

    def _gumbel_max(self, logits: torch.Tensor, specs: Seq[Any]) -> Seq[Sample]:
        tokens = np.empty(len(specs), np.int64)
        keys = np.array([spec.key for spec in specs], np.uint64)
        rows = logits.numpy()
        if self._ids.size != rows.shape[1]:
            self._ids = np.arange(rows.shape[1], dtype=np.uint32)
        choose_by_gumbel(rows, self._ids, _temperatures(specs), keys, self._scratch.like(rows), tokens)
        chosen: list[int] = tokens.tolist()
        return chosen

    def _sample_complement(self, logits: torch.Tensor, specs: Seq[Any]) -> Seq[Sample]:
        num_rows, vocab_size = logits.shape
        sizes = [len(spec.support) for spec in specs]
        starts = np.concatenate(([0], np.cumsum(sizes)))
        supports = np.concatenate([spec.support for spec in specs])
        uniforms = np.array([spec.uniform for spec in specs])
        inside, sums = np.empty(len(supports), np.float32), np.empty((num_rows, -(-vocab_size // PART)))
        tokens, masses = np.empty(num_rows, np.int64), np.empty(num_rows)
        rows = logits.numpy()
        choose_outside(
            rows, _temperatures(specs), supports, starts, uniforms, self._scratch.like(rows), sums,
            inside, tokens, masses,
        )  # fmt: skip
        parts = np.split(inside, starts[1:-1])
        return [ComplementSample(*each) for each in zip(tokens.tolist(), masses.tolist(), parts, strict=True)]


def _temperatures(specs: Seq[SampleSpec]) -> Array:
    return np.array([spec.sampling.temperature for spec in specs])
