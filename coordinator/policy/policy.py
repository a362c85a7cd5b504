"""The `Policy` of a generation makes each round's proposal, or leaves the round without one.

    FixedPolicy                     one drafter, always for the same number of tokens
    PredictionPolicy                the client's predicted output while it matches; otherwise another policy
    AdaptivePolicy (`adaptive`)     the default: the drafter that gains most, for as many tokens as pay

`policies.Policies` makes each request's policy.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter, NoDrafter
from coordinator.drafters.head import HeadDrafter
from coordinator.drafters.prediction import LONG_MATCH, PredictionDrafter
from coordinator.reports import DraftReport
from coordinator.stats import Round

# Rounds that a target goes on with by itself, as many as servers allow: only after them does it wait for a message.
MOST_ROUNDS = 64


class Policy(ABC):
    """One generation's policy."""

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self._drafters = drafters
        self._head = next((each for each in drafters if isinstance(each, HeadDrafter)), None)

    async def propose(self, context: Context) -> Proposal:
        """Makes the proposal for the next round.

        The prompt's round has no drafts, so that the first token does not wait for the draft model to read the prompt.
        """
        if context.num_generated == 0:
            proposal = Proposal(report=DraftReport(reason="the prompt's round"))
        else:
            proposal = context.shape(await self.propose_after_prompt(context))
        if self._head is not None:
            self._head.ask(context, proposal, *self.next_length())
        if self.goes_on and context.target_decides:
            # As many as have room whatever they accept.
            num_rounds = (context.num_remaining - len(proposal) - proposal.num_next - 1) // (proposal.num_next + 1)
            proposal.num_more_rounds = max(0, min(MOST_ROUNDS, num_rounds))
        proposal.may_come_late = self.may_come_late
        proposal.stops_target = self.may_come_late and not self.goes_on
        return proposal

    @property
    def goes_on(self) -> bool:
        """Whether the next rounds are what the target would do by itself, so that it need not wait for each."""
        return False

    @property
    def may_come_late(self) -> bool:
        """Whether a target that goes on by itself need not be interrupted for this round's drafts."""
        return False

    @abstractmethod
    async def propose_after_prompt(self, context: Context) -> Proposal:
        """Makes the proposal for a round after the prompt's."""

    @abstractmethod
    def next_length(self) -> tuple[int, float]:
        """Returns how many drafts the target's head is to make behind this round, and the joint confidence at which it stops."""

    def learn(self, finished: Round) -> None:
        """Learns from a finished round."""
        if self._head is not None:
            self._head.take(finished.verify_result.report)

    def truncate(self, length: int) -> None:
        for drafter in self._drafters:
            drafter.truncate(length)

    def release(self) -> None:
        for drafter in self._drafters:
            drafter.release()


class FixedPolicy(Policy):
    """Asks one drafter for the same number of tokens in every round."""

    def __init__(self, drafter: Drafter, num_draft_tokens: int) -> None:
        super().__init__([drafter])
        self._drafter = drafter
        self._num_draft_tokens = num_draft_tokens

    async def propose_after_prompt(self, context: Context) -> Proposal:
        return await _propose(self._drafter, context, self._num_draft_tokens)

    def next_length(self) -> tuple[int, float]:
        return self._num_draft_tokens, 0.0

    @property
    def goes_on(self) -> bool:
        return isinstance(self._drafter, NoDrafter | HeadDrafter)


class PredictionPolicy(Policy):
    """Proposes from the prediction while the output follows it, otherwise as `fallback` does."""

    def __init__(self, prediction: PredictionDrafter, num_draft_tokens: int, fallback: FixedPolicy) -> None:
        super().__init__([prediction, *fallback._drafters])
        self._prediction = prediction
        self._num_draft_tokens = num_draft_tokens
        self._fallback = fallback
        # Whether the output follows the prediction.
        self._follows = False

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._follows = await self._prediction.match(context) >= LONG_MATCH
        if self._follows:
            return await _propose(self._prediction, context, self._num_draft_tokens)
        return await self._fallback.propose_after_prompt(context)

    def next_length(self) -> tuple[int, float]:
        return (0, 0.0) if self._follows else self._fallback.next_length()


async def _propose(drafter: Drafter, context: Context, num_draft_tokens: int) -> Proposal:
    """Proposes `num_draft_tokens` tokens, or as many as the context has room for, or says why there are none."""
    num_asked = min(num_draft_tokens, context.draft_room)
    proposal = await drafter.propose(context, num_asked)
    if not context.request.trace:
        # Nothing else tells what was asked for, or why nothing came.
        return proposal
    if proposal.tokens:
        return replace(proposal, report=replace(proposal.report, num_asked=num_asked, reason=""))
    if num_draft_tokens == 0:
        reason = "speculation is off"
    elif num_asked == 0:
        reason = "one token is left to generate"
    else:
        reason = proposal.report.reason or "the drafter proposed nothing"
    return replace(proposal, report=replace(proposal.report, num_asked=num_asked, reason=reason))
