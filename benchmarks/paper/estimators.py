"""Acceptance probabilities from two distributions, and means with standard errors.

p: the target's distribution, q: the draft's, both after temperature; [num_rows, vocab_size], each row sums to 1.
Every function returns [num_rows].
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


def overlap(p: torch.Tensor, q: torch.Tensor, lenience: float = 1.0) -> torch.Tensor:
    """Returns the acceptance probability, sum of min(p / lenience, q) (theorem 3.5, appendix A.5)."""
    return torch.minimum(p / lenience if lenience < 1 else p, q).sum(-1)


def accepted(
    p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: torch.Tensor, lenience: float = 1.0
) -> torch.Tensor:
    """Returns whether algorithm 1 accepts each draft: r * lenience * q < p. drafts, uniforms: [num_rows]."""
    at_p, at_q = (each.gather(1, drafts.unsqueeze(1)).squeeze(1) for each in (p, q))
    return uniforms * lenience * at_q < at_p


def accepted_greedily(logits: torch.Tensor, drafts: torch.Tensor, lenience: float) -> torch.Tensor:
    """Returns whether each draft has p >= lenience * max p, at temperature 0. logits: the target's, [num_rows,
    vocab_size].

    Appendix A.5 prints p <= lenience * max p, the reverse of what it describes.
    """
    margin = logits.amax(-1) - logits.gather(1, drafts.unsqueeze(1)).squeeze(1)
    return margin <= -math.log(lenience)


def rejection_sampling(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Returns the probability that rejection sampling accepts, 1 / M with M = max p / q (appendix A.2).

    The appendix sums p(x) min q/p over x; p sums to 1, which leaves the minimum of q/p over p > 0.
    """
    ratio = torch.where(p > 0, q / p, torch.inf)
    return ratio.amin(-1).clamp(max=1.0)


class Estimate(NamedTuple):
    mean: float
    error: float


def clustered(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Returns the mean over all tokens of several texts, from each text's sum and number of tokens.

    Texts are independent, tokens of one text are not: the error is that of a ratio of sums over texts, NaN for one
    text.
    """
    total, texts = sum(counts), len(counts)
    mean = sum(sums) / total
    if texts < 2:
        return Estimate(mean, math.nan)
    squares = sum((each - mean * count) ** 2 for each, count in zip(sums, counts, strict=True))
    return Estimate(mean, math.sqrt(squares * texts / (texts - 1)) / total)


def coins_off(hits: float, expected: float, variance: float) -> float:
    """Returns by how many standard deviations `hits` differ from `expected`, the sum of the coins' probabilities.
    `variance`: the sum of chance * (1 - chance). 0 if all coins were certain and nothing differs.
    """
    if variance <= 1e-9:
        return 0.0 if abs(hits - expected) < 1e-3 else math.inf
    return (hits - expected) / math.sqrt(variance)


def ratio_of_sums(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """Returns sum(over) / sum(under) of pairs, with the standard error over pairs (delta method)."""
    pairs, total = len(over), sum(under)
    ratio = sum(over) / total
    if pairs < 2:
        return Estimate(ratio, math.nan)
    squares = sum((a - ratio * b) ** 2 for a, b in zip(over, under, strict=True))
    return Estimate(ratio, math.sqrt(squares * pairs / (pairs - 1)) / total)
