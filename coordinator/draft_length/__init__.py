"""Draft length rules: how many tokens to propose in a round. Each rule has its own file.

A rule may use decided positions and times. It may not use a token that was sampled and then dropped, because that would
bias the output. Times only change how the output is divided into rounds, never its distribution.
"""

from typing import Protocol

from coordinator.context import Context
from coordinator.round import Round


class DraftLengthRule(Protocol):
    """One generation's rule."""

    @property
    def reason_for_none(self) -> str:
        """Why the rule chose 0, in words for a user."""
        ...

    def choose(self, context: Context) -> int:
        """The most tokens to propose in the next round."""
        ...

    def learn(self, finished: Round) -> None:
        """Learns from a finished round. The round that feeds the prompt has no drafts and is left out."""
        ...


class FixedLength:
    """Always proposes the same number of tokens."""

    reason_for_none = "speculation is off"

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def choose(self, context: Context) -> int:
        return self._num_draft_tokens

    def learn(self, finished: Round) -> None:
        pass
