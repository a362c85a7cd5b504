"""Log-probabilities of emitted tokens, chosen from those the target sends.

Under `rejection` the coordinator decides which token is emitted, so the target sends the
log-probabilities of all that may be: the support's ids and the token drawn outside it.
"""

from dataclasses import dataclass


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
