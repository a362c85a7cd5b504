"""Drafters, which make proposals. Each drafting method has its own file; a new method is a new file here.

A drafter belongs to one generation. It may propose fewer tokens than asked, or none: then the round is plain decoding.
Proposals never change the output's distribution, if each token that a drafter calls sampled was sampled from the
probabilities that the drafter gives.
"""

from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context


class Drafter(Protocol):
    """One generation's drafter, as proposers use it."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        """Proposes up to `num_draft_tokens` tokens after the context."""
        ...

    def truncate(self, length: int) -> None:
        """Drops cached tokens from position `length` on. Only the first `length` tokens of the context are kept."""
        ...

    def release(self) -> None:
        """The generation has ended."""
        ...


class NoDrafter:
    """Never proposes: plain decoding."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal()

    def truncate(self, length: int) -> None:
        pass

    def release(self) -> None:
        pass
