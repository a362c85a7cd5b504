"""How likely a sampled token was: a draft model that is unsure of its tokens stops drafting."""

from collections.abc import Sequence as Seq

import torch

from paceline.engine.sampling.specs import ConfidentSample, Sample, SampleSpec

# For temperatures so small that a product with their inverse may be infinite. They give 1 all the same.
LOWEST_TEMPERATURE = 1e-6


def with_confidence(logits: torch.Tensor, specs: Seq[SampleSpec], samples: Seq[Sample]) -> list[Sample]:
    """Makes a ConfidentSample of each int whose spec wants it. logits: [num_specs, vocab_size] float32, processed."""
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
