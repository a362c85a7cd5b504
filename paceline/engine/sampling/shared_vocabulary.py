"""Samples each row in its spec's vocabulary: the model's own, or the tokens that it shares with a target."""

from collections.abc import Iterator
from collections.abc import Sequence as Seq

import numpy as np
import torch

from paceline.engine.sampling.logprobs import RowLogprobs, compute_logprobs, with_confidence
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.vocabulary import SharedVocabulary


def sample_rows(
    sampler: Sampler, logits: torch.Tensor, specs: Seq[SampleSpec]
) -> Iterator[tuple[Sample, RowLogprobs | None]]:
    """logits: [num_specs, vocab_size] float32, which may be changed."""
    vocabularies = {spec.vocabulary for spec in specs}
    found: dict[int, tuple[Sample, RowLogprobs | None]] = {}
    for vocabulary in vocabularies:
        rows = [row for row, spec in enumerate(specs) if spec.vocabulary is vocabulary]
        own, own_specs = logits if len(vocabularies) == 1 else logits[rows], [specs[row] for row in rows]
        if vocabulary is not None:
            own = in_vocabulary(own, vocabulary)
        samples = with_confidence(own, own_specs, sampler.sample(own, own_specs))
        found |= zip(rows, zip(samples, compute_logprobs(own, own_specs, samples), strict=True), strict=True)
    return (found[row] for row in range(len(specs)))


def in_vocabulary(logits: torch.Tensor, shared: SharedVocabulary) -> torch.Tensor:
    """logits: [num_rows, vocab_size] of the draft model -> [num_rows, target_vocab_size], -inf for tokens not shared."""
    size = len(logits), shared.target_vocab_size
    if logits.device.type == "cpu":
        # torch would start threads that compete with the kernels'.
        rows = np.full(size, -np.inf, np.float32)
        rows[:, shared.target_token_ids] = logits.numpy()[:, shared.draft_token_ids]
        return torch.from_numpy(rows)
    ours, theirs = (
        torch.from_numpy(ids).to(logits.device) for ids in (shared.draft_token_ids, shared.target_token_ids)
    )
    return logits.new_full(size, -torch.inf).index_copy_(1, theirs, logits.index_select(1, ours))
