"""Chances of acceptance from two distributions, and means with standard errors.

p: the target's distribution, q: the draft's, both after temperature; [num_rows, vocab_size], each row sums to 1.
Every function returns [num_rows].
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch


def overlap(p: torch.Tensor, q: torch.Tensor, lenience: float = 1.0) -> torch.Tensor:
    """The chance that a draft from q is accepted, sum of min(p / lenience, q) (theorem 3.5, appendix A.5)."""
    return torch.minimum(p / lenience if lenience < 1 else p, q).sum(-1)


def accepted(
    p: torch.Tensor, q: torch.Tensor, drafts: torch.Tensor, uniforms: torch.Tensor, lenience: float = 1.0
) -> torch.Tensor:
    """Whether each draft is accepted by Algorithm 1: r * lenience * q < p. drafts, uniforms: [num_rows]."""
    at_p, at_q = (each.gather(1, drafts.unsqueeze(1)).squeeze(1) for each in (p, q))
    return uniforms * lenience * at_q < at_p


def accepted_greedily(logits: torch.Tensor, drafts: torch.Tensor, lenience: float) -> torch.Tensor:
    """At temperature 0: whether each draft has p >= lenience * max p. logits: the target's, [num_rows, vocab_size].

    Appendix A.5 prints p <= lenience * max p; what it describes is the other way round.
    """
    margin = logits.amax(-1) - logits.gather(1, drafts.unsqueeze(1)).squeeze(1)
    return margin <= -math.log(lenience)


def rejection_sampling(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """The chance that rejection sampling accepts a draft from q, 1 / M with M = max p / q (appendix A.2).

    The appendix sums p(x) min q/p over x; p sums to 1, so what is left is the least q/p where p > 0.
    """
    ratio = torch.where(p > 0, q / p, torch.inf)
    return ratio.amin(-1).clamp(max=1.0)


class Estimate(NamedTuple):
    """A mean and its standard error."""

    mean: float
    error: float


def clustered(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """The mean over all tokens of several texts, from each text's sum and number of tokens.

    Tokens of one text are not independent, texts are: the error is that of a ratio of sums over texts. A single text
    says nothing of it: its error is NaN.
    """
    total, texts = sum(counts), len(counts)
    mean = sum(sums) / total
    if texts < 2:
        return Estimate(mean, math.nan)
    squares = sum((each - mean * count) ** 2 for each, count in zip(sums, counts, strict=True))
    return Estimate(mean, math.sqrt(squares * texts / (texts - 1)) / total)


def coins_off(hits: float, expected: float, variance: float) -> float:
    """By how many standard deviations `hits` differ from `expected`, the sum of the coins' chances; `variance`: the sum
    of chance * (1 - chance). 0 where nothing was left to chance and nothing differs."""
    if variance <= 1e-9:
        return 0.0 if abs(hits - expected) < 1e-3 else math.inf
    return (hits - expected) / math.sqrt(variance)


def ratio_of_sums(over: Sequence[float], under: Sequence[float]) -> Estimate:
    """sum(over) / sum(under) of pairs, with the standard error over pairs (delta method)."""
    pairs, total = len(over), sum(under)
    ratio = sum(over) / total
    if pairs < 2:
        return Estimate(ratio, math.nan)
    squares = sum((a - ratio * b) ** 2 for a, b in zip(over, under, strict=True))
    return Estimate(ratio, math.sqrt(squares * pairs / (pairs - 1)) / total)
