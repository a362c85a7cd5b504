"""Where proposals come from: one file each. A new drafting method is a new file here.

A drafter belongs to one generation. It may propose fewer tokens than asked, or none:
that round is then plain decoding. What it proposes never changes the output's law, as
long as tokens it calls sampled were sampled from the probabilities it gives.
"""

from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context


class Drafter(Protocol):
    """What the loop asks of a drafter."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        """Up to `num_draft_tokens` tokens after the context."""
        ...

    def truncate(self, length: int) -> None:
        """The context's first `length` tokens are decided; what was cached beyond them is not."""
        ...

    def release(self) -> None:
        """The generation is over."""
        ...


class NoDrafter:
    """Never proposes: plain decoding."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal()

    def truncate(self, length: int) -> None:
        pass

    def release(self) -> None:
        pass
