"""Log-probabilities, entropy and confidence of a row.

Log-probabilities are those before temperature and truncation: at temperature 0 all the mass would be on one token.
Confidence is a draft token's probability at the temperature.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.engine.sampling.specs import (
    ArgmaxWithLenience,
    ComplementSample,
    ConfidentSample,
    LenientSample,
    Sample,
    SampleComplement,
    SampleSpec,
    Score,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import largest

# Rows at a time, to bound memory: a prompt has hundreds of rows in one step.
ROWS_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class RowLogprobs:
    # Entropy in nats, divided by ln(vocab_size), in [0, 1].
    entropy: float
    # Log-probabilities of the tokens of `scored_tokens`.
    chosen: NDArray[np.float32]  # [num_scored]
    # The likeliest tokens and their log-probabilities, likeliest first; of equals the lower id is first.
    top_ids: NDArray[np.int64]  # [num_logprobs]
    top: NDArray[np.float32]  # [num_logprobs]


def compute_logprobs(logits: torch.Tensor, specs: Seq[SampleSpec], samples: Seq[Sample]) -> list[RowLogprobs | None]:
    """logits: [num_specs, vocab_size] float32, processed."""
    rows = [row for row, spec in enumerate(specs) if spec.wants_logprobs]
    row_logprobs: list[RowLogprobs | None] = [None] * len(specs)
    # Allocated once: once per part, between results that stay, would fragment memory.
    scratch = torch.empty((2, min(len(rows), ROWS_AT_ONCE), logits.shape[1]), dtype=torch.float64, device=logits.device)
    for first in range(0, len(rows), ROWS_AT_ONCE):
        some = rows[first : first + ROWS_AT_ONCE]
        exact, log_probs = scratch[:, : len(some)]  # each [num_some, vocab_size]
        for index, row in enumerate(some):
            exact[index] = logits[row]
        torch.log_softmax(exact, dim=-1, out=log_probs)
        for index, row in enumerate(some):
            row_logprobs[row] = _compute_row(log_probs[index], specs[row], samples[row])
    return row_logprobs


def scored_tokens(spec: SampleSpec, sample: Sample) -> list[int]:
    """Returns the tokens that may be emitted here, or the one that the spec scores.

    A complement sample: the support, then the sampled token. A lenient sample: the sampled token, then the draft.
    """
    match sample:
        case ComplementSample():
            assert isinstance(spec, SampleComplement)
            return [*spec.support.tolist(), sample.token]
        case LenientSample():
            assert isinstance(spec, ArgmaxWithLenience)
            return [sample.token, spec.draft]
        case ConfidentSample() | TruncatedSample():
            return [sample.token]
        case None:
            assert isinstance(spec, Score)
            return [spec.token]
    return [sample]


def _compute_row(log_probs: torch.Tensor, spec: SampleSpec, sample: Sample) -> RowLogprobs:
    """log_probs: [vocab_size] float64."""
    entropy = 0.0
    if spec.wants_entropy:
        # Cumulative sum, because torch may split a plain sum over one row between threads in any order.
        parts = torch.special.entr(log_probs.exp()).cumsum(dim=-1)
        entropy = float(parts[-1]) / math.log(len(log_probs))
    chosen: list[int] = [] if spec.num_logprobs is None else scored_tokens(spec, sample)
    [top_ids] = largest(log_probs.unsqueeze(0), spec.num_logprobs or 0)
    return RowLogprobs(
        entropy=entropy,
        chosen=log_probs[torch.tensor(chosen, dtype=torch.int64, device=log_probs.device)].float().cpu().numpy(),
        top_ids=top_ids.cpu().numpy(),
        top=log_probs[top_ids].float().cpu().numpy(),
    )


# For temperatures so small that a product with their inverse may be infinite. They give 1 all the same.
LOWEST_TEMPERATURE = 1e-6


def with_confidence(logits: torch.Tensor, specs: Seq[SampleSpec], samples: Seq[Sample]) -> list[Sample]:
    """logits: [num_specs, vocab_size] float32, processed."""
    results = list(samples)
    rows = [row for row, spec in enumerate(specs) if spec.wants_confidence and isinstance(samples[row], int)]
    if rows:
        chosen = logits if len(rows) == len(specs) else logits[rows]
        tokens = [[samples[row]] for row in rows]
        temperatures = [[max(specs[row].sampling.temperature or 1.0, LOWEST_TEMPERATURE)] for row in rows]
        scaled = chosen / torch.tensor(temperatures, device=logits.device)
        of_tokens = scaled.gather(1, torch.tensor(tokens, device=logits.device)).squeeze(1)  # [num_rows]
        chances = (of_tokens - scaled.logsumexp(dim=-1)).exp().tolist()
        for row, [token], chance in zip(rows, tokens, chances, strict=True):
            assert isinstance(token, int)
            results[row] = ConfidentSample(token, chance)
    return results
