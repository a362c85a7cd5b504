"""Encodes sample specs as rows of a GPU table, and decodes samples.

torch samples rows that need more than the MOST likeliest tokens or can't be encoded, and computes log-probabilities;
some rows at a time, because it works on float64.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cuda.sampling.table import MOST, Column, Found, Kind
from paceline.engine.sampling.logprobs import RowLogprobs, compute_logprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import (
    Argmax,
    ComplementSample,
    GumbelMax,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)

# Less than the likeliest token's probability ever is.
LEAST_TOP_P = 1e-200


@dataclass(frozen=True, slots=True)
class Results:
    """A `SampleTable` on the host: one step ([num_rows, ...]) or several ([num_steps, num_rows, ...])."""

    numbers: Array  # [..., num_rows, len(Found)] float64
    ids: Array  # [..., num_rows, MOST] int32
    probs: Array  # [..., num_rows, MOST] float32

    def of_step(self, step: int) -> "Results":
        return Results(self.numbers[step], self.ids[step], self.probs[step])

    def at(self, rows: list[int]) -> "Results":
        return Results(self.numbers[rows], self.ids[rows], self.probs[rows])

    @property
    def is_complete(self) -> Array:
        """Which rows have a valid sample: [..., num_rows] bool."""
        return self.numbers[..., Found.IS_COMPLETE] > 0


def is_codable(spec: SampleSpec) -> bool:
    if spec.is_processed or spec.wants_logprobs:
        return False
    match spec:
        case Argmax() | GumbelMax():
            return True
        case SampleTruncated():
            return spec.max_size <= MOST and not spec.sampling.is_greedy
        case SampleComplement():
            return len(spec.support) <= MOST and not spec.sampling.is_greedy
    return False


def encode(specs: Seq[SampleSpec], vocab_size: int, numbers: Array, supports: Array) -> None:
    """Writes specs into a table's first rows; those that can't be encoded become padding.

    numbers: [num_rows, len(Column)] float64; supports: [num_rows, MOST] int32.
    """
    numbers[:], supports[:] = 0, vocab_size
    numbers[:, Column.TEMPERATURE] = numbers[:, Column.TOP_P] = 1
    for row, spec in enumerate(specs):
        sampling, own = spec.sampling, numbers[row]
        if sampling.is_greedy or not is_codable(spec):
            continue
        own[Column.TEMPERATURE], own[Column.TOP_K] = sampling.temperature, sampling.top_k
        # The kernel keeps tokens preceded by less than this mass, so 0 would keep nothing.
        own[Column.TOP_P], own[Column.MIN_P] = max(sampling.top_p, LEAST_TOP_P), sampling.min_p
        own[Column.IS_CUT] = 0 < sampling.top_k < vocab_size or sampling.top_p < 1 or sampling.min_p > 0
        match spec:
            case GumbelMax(key=key):
                own[Column.KIND] = Kind.GUMBEL
                own[Column.KEY_LOW], own[Column.KEY_HIGH] = key & 0xFFFFFFFF, key >> 32
            case SampleTruncated(uniform=uniform, max_size=max_size, min_mass=min_mass):
                own[Column.KIND], own[Column.UNIFORM] = Kind.SUPPORT, uniform
                own[Column.MAX_SIZE], own[Column.MIN_MASS] = max_size, min_mass
            case SampleComplement(support=support, uniform=uniform):
                own[Column.KIND], own[Column.UNIFORM] = Kind.OUTSIDE, uniform
                own[Column.SUPPORT_SIZE] = len(support)
                supports[row, : len(support)] = support


def decode(specs: Seq[SampleSpec], samples: Results) -> list[Sample]:
    """Returns samples; None for a row that `TorchSampler` must sample."""
    found: list[Sample] = []
    for row, spec in enumerate(specs):
        own, probs = samples.numbers[row], samples.probs[row]
        token = int(own[Found.TOKEN])
        if not (is_codable(spec) and own[Found.IS_COMPLETE]):
            found.append(None)
        elif isinstance(spec, SampleTruncated):
            size = int(own[Found.SIZE])
            found.append(TruncatedSample(token, samples.ids[row, :size].astype(np.int64), probs[:size].copy()))
        elif isinstance(spec, SampleComplement):
            found.append(ComplementSample(token, float(own[Found.MASS]), probs[: len(spec.support)].copy()))
        else:
            found.append(token)
    return found


# Rows at a time.
REMAINDER_ROWS = 32


def sample_remainder(
    sampler: Sampler, logits: torch.Tensor, specs: Seq[SampleSpec], rows: Seq[int]
) -> Iterator[tuple[int, Sample, RowLogprobs | None]]:
    """Samples and scores `rows` of logits: [at least len(specs), vocab_size] float32, without changing them."""
    for first in range(0, len(rows), REMAINDER_ROWS):
        some = rows[first : first + REMAINDER_ROWS]
        own, own_specs = logits[list(some)], [specs[row] for row in some]
        samples = sampler.sample(own, own_specs)
        yield from zip(some, samples, compute_logprobs(own, own_specs, samples), strict=True)
