"""The proposer: chooses which drafter proposes in a round. Each drafter has its own draft length rule."""

from dataclasses import dataclass

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.draft_length import DraftLengthRule
from coordinator.drafting import Drafter
from coordinator.round import Round


@dataclass(frozen=True, slots=True)
class Source:
    """A drafter and the rule that says how many tokens it proposes."""

    drafter: Drafter
    length: DraftLengthRule


class Proposer:
    """One generation's proposer with one source. A subclass may choose among several sources."""

    def __init__(self, *sources: Source) -> None:
        self._sources = sources
        # The source that proposed in this round; None in the round that feeds the prompt.
        self._asked: Source | None = None

    async def choose(self, context: Context) -> Source:
        """The source of the next round.

        The choice must depend only on decided tokens, because the rule that verifies a proposal may depend on the
        source.
        """
        return self._sources[0]

    async def propose(self, context: Context) -> Proposal:
        """The proposal for the next round.

        The round that feeds the prompt has no drafts, so that the first token does not wait until the draft model has
        read the prompt.
        """
        if context.num_generated == 0:
            return Proposal()
        self._asked = await self.choose(context)
        num_draft_tokens = min(self._asked.length.choose(context), context.draft_room)
        return await self._asked.drafter.propose(context, num_draft_tokens)

    def learn(self, finished: Round) -> None:
        """Only the source of this round learns from it: costs and acceptance of other sources differ."""
        if self._asked is not None:
            self._asked.length.learn(finished)

    def truncate(self, length: int) -> None:
        for source in self._sources:
            source.drafter.truncate(length)

    def release(self) -> None:
        for source in self._sources:
            source.drafter.release()
