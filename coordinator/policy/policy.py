"""The proposer: makes a round's proposal, or leaves the round without one. It asks drafters, which make drafts in one way each.

    FixedProposer                             one drafter, always for the same number of tokens
    HybridProposer (`hybrid`)                 n-grams or the draft model, always for the same number of tokens
    PredictionProposer (`prediction`)         the text that the client expects; else another proposer
    Chooser (`coordinator.choosing.chooser`)  the default: whichever drafter gains most, for as many tokens as pay

`factory` chooses among them for a request.
"""

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter
from coordinator.reports import DraftReport
from coordinator.stats import Round


class Cached(Protocol):
    """What a proposer asks for drafts: a drafter, or a source that has one."""

    def truncate(self, length: int) -> None: ...

    def release(self) -> None: ...


class Proposer(ABC):
    """One generation's proposer."""

    def __init__(self, *cached: Cached) -> None:
        self._cached = cached

    async def propose(self, context: Context) -> Proposal:
        """The proposal for the next round.

        The round that feeds the prompt has no drafts, so that the first token does not wait until the draft model has
        read the prompt.
        """
        if context.num_generated == 0:
            return Proposal(report=DraftReport(reason="the prompt's round"))
        return await self.propose_after_prompt(context)

    @abstractmethod
    async def propose_after_prompt(self, context: Context) -> Proposal:
        """The proposal for a round after the prompt's."""

    def learn(self, finished: Round) -> None:  # noqa: B027 a fixed proposer has nothing to learn
        """Learns from a finished round."""

    def truncate(self, length: int) -> None:
        for each in self._cached:
            each.truncate(length)

    def release(self) -> None:
        for each in self._cached:
            each.release()


class FixedProposer(Proposer):
    """Asks the same drafter for the same number of tokens in every round."""

    def __init__(self, drafter: Drafter, num_draft_tokens: int) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._num_draft_tokens = num_draft_tokens

    async def propose_after_prompt(self, context: Context) -> Proposal:
        return await propose_from(self._drafter, context, self._num_draft_tokens)


async def propose_from(drafter: Drafter, context: Context, num_draft_tokens: int) -> Proposal:
    """The drafter's proposal of `num_draft_tokens` tokens, or of as many as the context has room for; or why not."""
    num_asked = min(num_draft_tokens, context.draft_room)
    proposal = await drafter.propose(context, num_asked)
    if proposal.tokens:
        return replace(proposal, report=replace(proposal.report, num_asked=num_asked, reason=""))
    if num_draft_tokens == 0:
        reason = "speculation is off"
    elif num_asked == 0:
        reason = "one token is left to generate"
    else:
        reason = proposal.report.reason or "the drafter proposed nothing"
    return replace(proposal, report=replace(proposal.report, num_asked=num_asked, reason=reason))
