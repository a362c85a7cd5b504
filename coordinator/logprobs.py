"""Log-probabilities of emitted tokens, chosen from those the target sends.

Under `rejection` the coordinator decides which token is emitted, so the target sends the
log-probabilities of all that may be: the support's ids and the token drawn outside it.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.rpc.messages import floats_from_bytes


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token's log-probability, and the likeliest tokens' at its position."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """What the target says of one position."""

    candidates: dict[int, float]
    top_token_ids: list[int]
    top_logprobs: list[float]

    def of(self, token: int) -> TokenLogprobs:
        return TokenLogprobs(self.candidates[token], self.top_token_ids, self.top_logprobs)


def unpack_logprobs(message: Any, candidates: list[list[int]], num_top: int) -> list[PositionLogprobs]:
    """`candidates`: per position the ids that `message.chosen` speaks of. Raises InvalidArgument where it does not fit."""
    sizes = [len(ids) for ids in candidates]
    values = floats_from_bytes(message.chosen, "logprobs.chosen", sum(sizes))
    chosen = np.split(values, np.cumsum(sizes)[:-1]) if sizes else []
    num_positions = len(candidates)
    ids = np.array(message.top_token_ids, dtype=np.int64).reshape(num_positions, num_top)
    top = floats_from_bytes(message.top, "logprobs.top", num_positions * num_top).reshape(num_positions, num_top)
    return [
        # The first mention counts: an outside token that means nothing may repeat an id of the support.
        PositionLogprobs(dict(zip(reversed(of), reversed(values.tolist()), strict=True)), ids[at].tolist(), top[at].tolist())
        for at, (of, values) in enumerate(zip(candidates, chosen, strict=True))
    ]  # fmt: skip
