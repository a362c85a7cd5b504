"""How many tokens to propose in a round: one file a rule.

A rule may look at decided positions and at times, never at tokens that were drawn and
dropped: that would bias the output. Times change where a round begins, never its law.
"""

from typing import Protocol

from coordinator.context import Context
from coordinator.round import Round


class DraftLengthRule(Protocol):
    """Belongs to one generation."""

    def choose(self, context: Context) -> int:
        """Most tokens to propose in the next round."""
        ...

    def learn(self, finished: Round) -> None:
        """Takes note of a round that was not the prompt's own."""
        ...


class FixedLength:
    """Always as many."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def choose(self, context: Context) -> int:
        return self._num_draft_tokens

    def learn(self, finished: Round) -> None:
        pass
