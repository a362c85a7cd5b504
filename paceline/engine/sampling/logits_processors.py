"""Logits processors: penalties, bias, token lists and a grammar's mask, applied in this order before sampling."""

from collections.abc import Sequence as Seq

import numpy as np
import torch

from paceline.engine.sampling.specs import SampleSpec, TokensBefore
from paceline.sampling_params import SamplingParams

# No processor makes a logit larger than this: the difference of any two stays a finite float32.
LARGEST_LOGIT = 1e38


def process_logits(logits: torch.Tensor, specs: Seq[SampleSpec]) -> None:
    """Changes logits: [num_specs, vocab_size] float32 in place. Batch invariant."""
    for row, spec in enumerate(specs):
        if spec.is_processed:
            _process_row(logits[row], spec)


def _process_row(logits: torch.Tensor, spec: SampleSpec) -> None:
    """logits: [vocab_size]."""
    sampling, device = spec.sampling, logits.device
    if spec.before is not None:
        _penalize(logits, sampling, spec.before)
    if sampling.logit_bias:
        ids = torch.tensor(list(sampling.logit_bias), device=device)
        _put(logits, ids, logits[ids] + torch.tensor(list(sampling.logit_bias.values()), device=device))
    if sampling.allowed_token_ids:
        ids = torch.tensor(sampling.allowed_token_ids, device=device)
        allowed = logits[ids]
        logits.fill_(-torch.inf)
        logits[ids] = allowed
    banned = (*sampling.banned_token_ids, *spec.banned)
    if banned:
        logits[torch.tensor(banned, device=device)] = -torch.inf
    if spec.mask is not None:
        is_out = np.unpackbits(~spec.mask.view(np.uint8), count=len(logits), bitorder="little").view(np.bool_)
        if device.type == "cpu":
            # numpy takes half of torch's time and starts no threads that compete with the kernels'.
            np.copyto(logits.numpy(), -np.inf, where=is_out)
        else:
            logits.masked_fill_(torch.from_numpy(is_out).to(device), -torch.inf)


def _penalize(logits: torch.Tensor, sampling: SamplingParams, before: TokensBefore) -> None:
    """Applies the penalties to logits: [vocab_size].

    Repetition counts prompt and output (Keskar et al. 2019, section 4.1), presence and frequency the output only.
    """
    device = logits.device
    if sampling.repetition_penalty != 1:
        # Without a token the dtype would be a float's. A draft model with another vocabulary may know none of the text's.
        seen = torch.tensor(before.prompt + before.output, dtype=torch.int64, device=device).unique()
        at_seen, penalty = logits[seen], sampling.repetition_penalty
        _put(logits, seen, torch.where(at_seen > 0, at_seen / penalty, at_seen * penalty))
    if before.output:
        ids, counts = torch.tensor(before.output, device=device).unique(return_counts=True)
        _put(logits, ids, logits[ids] - (sampling.presence_penalty + sampling.frequency_penalty * counts))


def _put(logits: torch.Tensor, ids: torch.Tensor, values: torch.Tensor) -> None:
    """Sets logits, clamped: infinite ones would yield NaN. logits: [vocab_size]; ids, values: [num_ids]."""
    logits[ids] = values.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
