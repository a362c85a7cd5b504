"""The CPU's sampler: kernels for the specs they support, torch for the rest.

Truncated specs sample from the MOST likeliest tokens; torch samples rows that need more.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.noise_sampling import PART, choose_by_gumbel, choose_outside, rank_tokens
from paceline.engine.sampling.sampler import SampleAlike, Sampler, sample_by_kind
from paceline.engine.sampling.specs import (
    ComplementSample,
    GumbelMax,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.noise import gumbel
from paceline.sampling_params import SamplingParams


class Scratch:
    """Reused working memory: mapping new pages would take longer than the kernels. Not thread-safe."""

    def __init__(self) -> None:
        self._kept = np.empty((0, 0), np.float32)

    def like(self, logits: Array) -> Array:
        """Returns an uninitialized float32 array of the shape of logits."""
        num_rows, width = logits.shape
        if self._kept.shape[0] < num_rows or self._kept.shape[1] != width:
            self._kept = np.empty((num_rows, width), np.float32)
        return self._kept[:num_rows]


class GumbelKernelSampler:
    def __init__(self, ids: Array | None = None) -> None:
        """`ids`: [num_logits], the token of each logit; None: logit i is token i. GumbelMax returns an index."""
        self._scratch = Scratch()
        self._ids = np.empty(0, np.uint32) if ids is None else ids.astype(np.uint32)

    @staticmethod
    def supports(spec: SampleSpec) -> bool:
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


# How many of a row's likeliest tokens the sampler looks at.
MOST = 256

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Ranking:
    """A row's likeliest allowed tokens, likeliest first."""

    ids: NDArray[np.int64]  # [num_tokens]
    probs: Floats  # [num_tokens], in the whole distribution
    # Whether the row has no other allowed tokens.
    is_whole: bool

    def truncated(self, sampling: SamplingParams) -> "Ranking | None":
        """Applies top-k, then top-p to what top-k leaves, then min-p, and normalizes.

        None if that needs tokens outside the ranking.
        """
        top, total, is_whole = self.probs, 1.0, self.is_whole
        if 0 < sampling.top_k <= len(top):
            top, is_whole = top[: sampling.top_k], True
            total = top.sum()
        elif sampling.top_k and not is_whole:
            return None
        sums = top.cumsum()
        keep = (top > 0) & (top >= sampling.min_p * top[0])
        if sampling.top_p < 1:
            keep &= sums - top < sampling.top_p * total
            # The likeliest stays if the product is too small for a float.
            keep[0] = True
        reaches = sampling.top_p < 1 and sums[-1] >= sampling.top_p * total
        if not (is_whole or reaches or keep[-1] < keep[0]):
            return None
        kept = top[keep]
        return Ranking(self.ids[: len(top)][keep], kept / kept.sum(), is_whole=True)


class TopKKernelSampler:
    def __init__(self) -> None:
        self._scratch = Scratch()

    @staticmethod
    def supports(spec: SampleSpec) -> bool:
        if spec.sampling.is_greedy:
            return False
        if isinstance(spec, SampleTruncated):
            return spec.max_size <= MOST
        return isinstance(spec, GumbelMax | SampleComplement) and not spec.sampling.is_untruncated

    def sample(self, logits: torch.Tensor, specs: Seq[Any]) -> list[Sample]:
        """Returns None for a row that needs more tokens. logits: [num_specs, vocab_size] float32."""
        return [self._sample(*each) for each in zip(self._rank(logits, specs), specs, strict=True)]

    def _rank(self, logits: torch.Tensor, specs: Seq[SampleSpec]) -> list[Ranking]:
        num_rows, vocab_size = logits.shape
        ids, probs = np.empty((num_rows, MOST), np.int64), np.empty((num_rows, MOST))
        sums, counts = np.empty((num_rows, -(-vocab_size // PART))), np.empty(num_rows, np.int64)
        temperatures, rows = np.array([spec.sampling.temperature for spec in specs]), logits.numpy()
        rank_tokens(rows, temperatures, self._scratch.like(rows), sums, ids, probs, counts)
        return [
            Ranking(ids[row, :count], probs[row, :count], is_whole=count < MOST or count == vocab_size)
            for row, count in enumerate(counts.tolist())
        ]

    def _sample(self, ranking: Ranking, spec: SampleSpec) -> Sample:
        kept = ranking if spec.sampling.is_untruncated else ranking.truncated(spec.sampling)
        if kept is None:
            return None
        if isinstance(spec, SampleTruncated):
            return _sample_truncated(kept, spec)
        if isinstance(spec, GumbelMax):
            return int(kept.ids[np.argmax(np.log(kept.probs) + gumbel(spec.key, kept.ids))])
        assert isinstance(spec, SampleComplement)
        return _sample_complement(kept, spec)


def _sample_truncated(kept: Ranking, spec: SampleTruncated) -> TruncatedSample:
    sums = kept.probs.cumsum()
    size = int(np.searchsorted(sums, spec.min_mass)) + 1
    size = min(size, spec.max_size, int(np.count_nonzero(kept.probs)))
    # Sample from the float32 probabilities that are sent: the verify result needs exactly the q of the sample.
    probs = (kept.probs[:size] / sums[size - 1]).astype(np.float32)
    return TruncatedSample(int(kept.ids[_invert(probs.astype(np.float64), spec.uniform)]), kept.ids[:size], probs)


def _sample_complement(kept: Ranking, spec: SampleComplement) -> ComplementSample:
    order = np.argsort(kept.ids)
    ids, left = kept.ids[order], kept.probs[order]
    indices = np.minimum(np.searchsorted(ids, spec.support), len(ids) - 1)  # [support_size]
    is_kept = ids[indices] == spec.support
    inside = np.where(is_kept, left[indices], 0.0).astype(np.float32)
    left[indices[is_kept]] = 0
    return ComplementSample(int(ids[_invert(left, spec.uniform)]), float(left.sum()), inside)


def _invert(probs: Floats, uniform: float) -> int:
    """Returns the first index whose cumulative sum exceeds uniform * total."""
    sums = probs.cumsum()
    index = int(np.searchsorted(sums, uniform * sums[-1], side="right"))
    return min(index, int(np.searchsorted(sums, sums[-1])))


class CpuSampler(Sampler):
    def __init__(self, ids: Array | None = None) -> None:
        """`ids`: [num_logits], the token of each logit; None: logit i is token i.

        With `ids`, specs must not need the whole vocabulary, and an int is an index among the logits.
        """
        super().__init__(GumbelKernelSampler(ids), TopKKernelSampler(), TorchSampler())
