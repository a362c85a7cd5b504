"""The proposer: chooses which drafter proposes in a round. Each drafter has its own draft length rule."""

from dataclasses import dataclass, replace

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
        self.sources = sources
        # The source that proposed in this round; None in the round that feeds the prompt.
        self._asked: Source | None = None

    async def choose(self, context: Context) -> Source:
        """The source of the next round.

        The choice must depend only on decided tokens, because the rule that verifies a proposal may depend on the
        source.
        """
        return self.sources[0]

    async def propose(self, context: Context) -> Proposal:
        """The proposal for the next round.

        The round that feeds the prompt has no drafts, so that the first token does not wait until the draft model has
        read the prompt.
        """
        if context.num_generated == 0:
            return Proposal(reason="the prompt's round")
        self._asked = asked = await self.choose(context)
        wanted = asked.length.choose(context)
        num_draft_tokens = min(wanted, context.draft_room)
        proposal = await asked.drafter.propose(context, num_draft_tokens)
        reason = "" if proposal.tokens else _reason(asked, wanted, num_draft_tokens, proposal)
        return replace(proposal, num_asked=num_draft_tokens, reason=reason)

    def learn(self, finished: Round) -> None:
        """Only the source of this round learns from it: costs and acceptance of other sources differ."""
        if self._asked is not None:
            self._asked.length.learn(finished)

    def truncate(self, length: int) -> None:
        for source in self.sources:
            source.drafter.truncate(length)

    def release(self) -> None:
        for source in self.sources:
            source.drafter.release()


def _reason(asked: Source, wanted: int, num_draft_tokens: int, proposal: Proposal) -> str:
    """Why nothing was proposed."""
    if wanted == 0:
        return asked.length.reason_for_none
    if num_draft_tokens == 0:
        return "one token is left to generate"
    return proposal.reason or "the drafter proposed nothing"
