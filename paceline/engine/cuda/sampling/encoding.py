"""Encodes sample specs as rows of a GPU table, and decodes samples.

torch samples rows that need more than the MOST likeliest tokens or can't be encoded, and computes log-probabilities;
some rows at a time, because it works on float64.
"""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cuda.sampling.spec_table import MOST, Column, Found, Kind
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.shared_vocabulary import sample_rows
from paceline.engine.sampling.specs import (
    Argmax,
    ComplementSample,
    ConfidentSample,
    GumbelMax,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)
from paceline.sampling_params import SamplingParams

# Less than the likeliest token's probability ever is.
LEAST_TOP_P = 1e-200
# A row that samples nothing: the values of a greedy one.
PADDING = [float(column in (Column.TEMPERATURE, Column.TOP_P)) for column in Column]


@dataclass(frozen=True, slots=True)
class Results:
    """A `SampleTable` on the host: one step ([num_rows, ...]) or several ([num_steps, num_rows, ...])."""

    numbers: Array  # [..., num_rows, len(Found)] float64
    ids: Array  # [..., num_rows, MOST] int32
    probs: Array  # [..., num_rows, MOST] float32

    def of_step(self, step: int) -> "Results":
        return Results(self.numbers[step], self.ids[step], self.probs[step])


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


def without_uncodable(specs: Iterable[SampleSpec]) -> list[SampleSpec | None]:
    """Replaces specs that are not codable with None."""
    found: list[SampleSpec | None] = []
    last, kept = None, None
    for spec in specs:
        # Greedy rows of a job share one spec.
        if spec is not last:
            last, kept = spec, spec if is_codable(spec) else None
        found.append(kept)
    return found


def encode(specs: Seq[SampleSpec | None], vocab_size: int, numbers: Array, supports: Array) -> None:
    """Writes codable specs into a table's first rows; None becomes padding.

    numbers: [num_rows, len(Column)] float64; supports: [num_rows, MOST] int32, undefined for all but OUTSIDE specs.
    """
    numbers[:] = PADDING
    rows: list[int] = []
    confident: list[int] = []
    values: list[list[float]] = []
    last, common = None, PADDING
    for row, spec in enumerate(specs):
        if spec is None:
            continue
        if spec.wants_confidence:
            confident.append(row)
        if spec.sampling.is_greedy:
            continue
        # All rows of a job have the same parameters.
        if spec.sampling is not last:
            last, common = spec.sampling, _encode_sampling(spec.sampling, vocab_size)
        own = common.copy()
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
                supports[row, : len(support)], supports[row, len(support) :] = support, vocab_size
        rows.append(row)
        values.append(own)
    if rows:
        numbers[rows] = values
    if confident:
        numbers[confident, Column.WANTS_CONFIDENCE] = 1


def _encode_sampling(sampling: SamplingParams, vocab_size: int) -> list[float]:
    own = PADDING.copy()
    own[Column.TEMPERATURE], own[Column.TOP_K] = sampling.temperature, sampling.top_k
    # The kernel keeps tokens preceded by less than this mass, so 0 would keep nothing.
    own[Column.TOP_P], own[Column.MIN_P] = max(sampling.top_p, LEAST_TOP_P), sampling.min_p
    own[Column.IS_CUT] = 0 < sampling.top_k < vocab_size or sampling.top_p < 1 or sampling.min_p > 0
    return own


def decode(specs: Seq[SampleSpec | None], samples: Results) -> list[Sample]:
    """Returns samples of codable specs; None for a row that `TorchSampler` must sample."""
    # Plain numbers: reading an array's elements one by one would be slow.
    columns = samples.numbers[: len(specs)].T.tolist()
    rows = zip(specs, columns[Found.IS_COMPLETE], columns[Found.TOKEN], strict=True)
    found: list[Sample] = []
    for row, (spec, is_complete, token) in enumerate(rows):
        if spec is None or not is_complete:
            found.append(None)
        elif isinstance(spec, SampleTruncated):
            size = int(columns[Found.SIZE][row])
            support, probs = samples.ids[row, :size].astype(np.int64), samples.probs[row, :size].copy()
            found.append(TruncatedSample(int(token), support, probs))
        elif isinstance(spec, SampleComplement):
            probs = samples.probs[row, : len(spec.support)].copy()
            found.append(ComplementSample(int(token), columns[Found.MASS][row], probs))
        elif spec.wants_confidence:
            found.append(ConfidentSample(int(token), columns[Found.CONFIDENCE][row]))
        else:
            found.append(int(token))
    return found


# Rows at a time.
REMAINDER_ROWS = 32


def sample_remainder(
    sampler: Sampler, logits: torch.Tensor, specs: Seq[SampleSpec], rows: Seq[int]
) -> Iterator[tuple[int, Sample, RowLogprobs | None]]:
    """Samples and scores `rows` of logits: [at least len(specs), vocab_size] float32, without changing them."""
    for first in range(0, len(rows), REMAINDER_ROWS):
        some = rows[first : first + REMAINDER_ROWS]
        sampled = sample_rows(sampler, logits[list(some)], [specs[row] for row in some])
        for row, (sample, seen) in zip(some, sampled, strict=True):
            yield row, sample, seen
