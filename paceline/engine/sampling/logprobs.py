"""What may be told of a distribution besides a token drawn from it: its entropy, log-probabilities.

All by the softmax after penalties, bias and token lists, before temperature and truncation:
after them a greedy distribution has no shape.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.engine.sampling.specs import Draw, Drawn, FromOutside, Judged, LikeliestJudging, Outside, Score, Supported


@dataclass(frozen=True, slots=True)
class Observation:
    """Of one row."""

    # Entropy over ln(vocabulary), in [0, 1].
    entropy: float
    # Log-probabilities of the tokens a draw is asked about (see `asked_tokens`).
    chosen: NDArray[np.float32]
    # The likeliest tokens and their log-probabilities, likeliest first: [num_logprobs].
    top_ids: NDArray[np.int64]
    top: NDArray[np.float32]


def observe(logits: torch.Tensor, draws: Seq[Draw], drawn: Seq[Drawn]) -> list[Observation | None]:
    """logits: [num_draws, vocab_size] float32, adjusted. None for draws that want no observation."""
    rows = [row for row, draw in enumerate(draws) if draw.is_observed]
    observations: list[Observation | None] = [None] * len(draws)
    if rows:
        log_probs = torch.log_softmax(logits[rows].double(), dim=-1)  # [num_observed, vocab_size]
        for index, row in enumerate(rows):
            observations[row] = _observe_row(log_probs[index], draws[row], drawn[row])
    return observations


def asked_tokens(draw: Draw, drawn: Drawn) -> list[int]:
    """All tokens that may be emitted here: the support and the token drawn outside it, a draft that is
    judged, the token drawn; or the one to score."""
    match drawn:
        case Outside():
            assert isinstance(draw, FromOutside)
            return [*draw.support.tolist(), drawn.token]
        case Judged():
            assert isinstance(draw, LikeliestJudging)
            return [drawn.token, draw.draft]
        case Supported():
            return [drawn.token]
        case None:
            assert isinstance(draw, Score)
            return [draw.token]
    return [drawn]


def _observe_row(log_probs: torch.Tensor, draw: Draw, drawn: Drawn) -> Observation:
    """log_probs: [vocab_size] float64."""
    entropy = 0.0
    if draw.wants_entropy:
        # By cumulative sum: the library may split a plain sum over one row between threads.
        parts = torch.special.entr(log_probs.exp()).cumsum(dim=-1)
        entropy = float(parts[-1]) / math.log(len(log_probs))
    chosen: list[int] = [] if draw.num_logprobs is None else asked_tokens(draw, drawn)
    top, top_ids = log_probs.topk(draw.num_logprobs or 0)
    return Observation(
        entropy=entropy,
        chosen=log_probs[torch.tensor(chosen, dtype=torch.int64, device=log_probs.device)].float().cpu().numpy(),
        top_ids=top_ids.cpu().numpy(),
        top=top.float().cpu().numpy(),
    )
