"""Drafts ahead: while the target verifies a proposal, the draft model drafts the next one.

    context  t1 … tk              the proposal, which the target verifies
    context  t1 … tk  u0 u1 … uk  drafted meanwhile: u0 guesses the bonus token

The early draft is open while the context follows these tokens. After a hit, those that the context has not reached are the next
proposal, and more can be drafted after them. After a miss its command is dropped, and drafting starts again.

The draft model drafts ahead if the draft and the targets share no device, other coordinators and requests leave the draft server idle for
most of the time, and

    chance * (draft_s - late_s)  >  (1 - chance) * min(late_s, step_s) / 2 + slower_s

    chance      that all of t1 … tk are accepted and u0 is the bonus token
    draft_s     seconds that the next round would wait for its proposal
    late_s      by how much drafting ahead takes longer than the target
    step_s      seconds of a forward pass, of which a miss waits for the last one to end: half of it, on average
    slower_s    what the additional tokens cost other generations in the forward passes that they share
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ahead_stats import AheadStats, ServerRecord
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.rates import Rates
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.remote.link import Link
from coordinator.remote.pending import ServerLost
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.sequence import ComingProposal
from coordinator.request import Request
from paceline.errors import FatalRequest, PacelineError
from paceline.speculation_params import MAX_DRAFT_TOKENS, DraftMode, EntropyAdaptive

# Share of the time above which others keep the draft server too busy.
MAX_LOAD = 0.5


@dataclass(slots=True)
class EarlyDraft:
    answer: ComingProposal
    num_tail_tokens: int
    num_drafts: int
    # Seconds that its forward passes take without others.
    forwards_s: float
    sent_s: float = field(default_factory=time.monotonic)

    @property
    def used_s(self) -> float:
        """Returns how long it can have occupied the server by now."""
        return min(self.forwards_s, time.monotonic() - self.sent_s)


def may_draft_ahead(request: Request) -> bool:
    """Whether no token depends on how proposals come about, and drafts on nothing but the tokens before them."""
    speculation = request.speculation
    if request.grammar is not None or isinstance(speculation.num_speculative_tokens, EntropyAdaptive):
        return False
    return speculation.lenience == 1 and speculation.resolved_draft_mode(request.sampling) is not DraftMode.SAMPLED


def has_own_device(draft: Link, targets: Pool) -> bool:
    """Returns whether no target may share the draft server's device."""
    return not any(draft.may_share_device(each.link) for each in targets.endpoints)


class AheadDrafter(RemoteDrafter):
    """Serves requests that `may_draft_ahead`."""

    def __init__(
        self, placement: Placement, request: Request, deadline: DraftDeadline, targets: Pool, ahead_stats: AheadStats
    ) -> None:
        super().__init__(placement, request, deadline)
        self._targets, self._ahead_stats = targets, ahead_stats
        self._mode = request.speculation.resolved_draft_mode(request.sampling)
        # The context, and the drafts that may follow its first `_start` tokens, with their probabilities if requested.
        self._tokens: Sequence[int] = ()
        self._start = 0
        self._drafts: list[int] = []
        self._confidences: list[float] = []
        # Of the last proposal; 0 after its round.
        self._num_proposed, self._is_short, self._proposed_s = 0, False, 0.0
        # Of the draft server's last answer.
        self._step_s = 0.0
        self._early_draft: EarlyDraft | None = None
        # The link that was compared with the targets', and whether none of them may share its device.
        self._compared: Link | None = None
        self._is_apart = False

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        self._tokens = context.tokens
        proposal = Proposal()
        if self._early_draft is not None and not after and num_draft_tokens > 0 and not self.absence(context):
            proposal = await self._collect(self._early_draft, len(context), num_draft_tokens)
        if not proposal.tokens:
            self._miss(len(context) - 1)
            started_s = time.monotonic()
            proposal = await super().propose(context, num_draft_tokens, min_probability, after)
            self._see(proposal, time.monotonic() - started_s)
            self._start, self._drafts, self._confidences = len(context), proposal.tokens, [*proposal.report.confidences]
        if proposal.tokens and not after:
            self._num_proposed, self._is_short = len(proposal), len(self._drafts) < num_draft_tokens
            self._draft_ahead(context, num_draft_tokens, min_probability)
        self._proposed_s = time.monotonic()
        return proposal

    def truncate(self, length: int) -> None:
        # `length` is the newest token's position, which is decided too.
        decided = self._tokens[self._start : length + 1]
        if self._num_proposed and decided:
            self._learn(decided)
        if self._early_draft is not None:
            if all(token == draft for token, draft in zip(decided, self._drafts, strict=False)):
                return
            self._miss(length)
        super().truncate(length)

    def release(self) -> None:
        # Undecided tokens must not be left to other requests.
        self._drop(len(self._tokens) - 1)
        super().release()

    async def _collect(self, early_draft: EarlyDraft, length: int, num_draft_tokens: int) -> Proposal:
        """Waits for an early draft's tokens and returns them if it hits; else an empty proposal."""
        if not self._sequence.length:
            # The server lost it, or is no longer this generation's.
            return Proposal()
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline.seconds(early_draft.num_tail_tokens + early_draft.num_drafts)):
                answer = await early_draft.answer
            self._placement.suspicion.on_progress(1)
            answered = self._read(answer, early_draft.num_tail_tokens, early_draft.num_drafts)
        except (PacelineError, TimeoutError):
            return Proposal()
        report, num_before = answered.report, len(self._drafts)
        self._see_step(answered)
        decided = self._tokens[self._start : length]
        self._drafts = [*self._drafts, *answered.tokens]
        self._confidences += report.confidences
        is_right = decided == self._drafts[: len(decided)]
        if bonus := decided[num_before : num_before + 1]:
            self._rates.learn("bonus", bonus == self._drafts[num_before : num_before + 1])
        rest, confidences = self._drafts[len(decided) :], self._confidences[len(decided) :]
        if not (is_right and rest):
            return Proposal()
        self._sequence.adopt(early_draft.num_tail_tokens + answer.num_fed_drafts)
        self._early_draft = None
        self._ahead_stats.num_hits += 1
        self._server.use(early_draft.used_s)
        self._start, self._drafts, self._confidences = length, rest, confidences
        waited_us = int((time.monotonic() - started_s) * 1e6)
        told = replace(
            report, compute_us=min(waited_us, report.compute_us), queued_us=0, is_ahead=True,
            confidences=confidences[:num_draft_tokens],
        )  # fmt: skip
        return Proposal(rest[:num_draft_tokens], report=told)

    def _draft_ahead(self, context: Context, num_asked: int, min_probability: float) -> None:
        num_cached, num_before = self._sequence.length, len(self._drafts)
        num_drafts = min(num_asked + 1, MAX_DRAFT_TOKENS, context.draft_room - num_before)
        num_drafts = min(num_drafts, self._capacity(context) - num_before)
        tail = [*self._tokens[num_cached:], *self._drafts[max(0, num_cached - self._start) :]]
        if num_drafts < 2 or not tail or not self._pays(len(tail), num_drafts):
            return
        fill = partial(self._fill, num_draft_tokens=num_drafts, min_probability=min_probability, num_choices=num_drafts)
        answer = self._sequence.start(tail, fill)
        if answer is not None:
            self._early_draft = EarlyDraft(answer, len(tail), num_drafts, self._forwards_s(len(tail), num_drafts))

    def _pays(self, num_tail_tokens: int, num_drafts: int) -> bool:
        server, rates, times = self._server, self._rates, self.times
        # Its own commands are no reason against drafting ahead.
        if not self._has_own_device() or self._placement.link.load.utilization - server.own_load >= MAX_LOAD:
            return False
        chance = rates[len(self._drafts), self._is_short] * rates["bonus"]
        num_steps, num_rows = self._steps(num_tail_tokens, num_drafts)
        # The next round would draft one token less.
        draft_s = max(1, num_steps - 1) * self._step_s + server.overhead_s.value
        late_s = max(0.0, num_steps * self._step_s - self._ahead_stats.verify_s.value)
        num_others = self._placement.num_others
        row_s = times((num_others + 1) * num_rows) - times(num_others * num_rows) if num_others else 0.0
        price_s = (1 - chance) * min(late_s, self._step_s) / 2 + num_others * num_steps * row_s
        return chance * (draft_s - late_s) > price_s

    @property
    def _server(self) -> ServerRecord:
        return self._ahead_stats.at(self._placement.link)

    @property
    def _rates(self) -> Rates:
        return self._server.rates(self._mode)

    def _has_own_device(self) -> bool:
        link = self._placement.link
        if self._compared is not link:
            self._compared = link
            self._is_apart = has_own_device(link, self._targets)
        return self._is_apart

    def _steps(self, num_tail_tokens: int, num_drafts: int) -> tuple[int, int]:
        """Returns the number of forward passes that draft `num_drafts` tokens, and the tokens in each forward pass after the first."""
        return (num_drafts, 1) if self.num_at_once == 1 else (1, num_tail_tokens + num_drafts - 1)

    def _forwards_s(self, num_tail_tokens: int, num_drafts: int) -> float:
        num_steps, num_rows = self._steps(num_tail_tokens, num_drafts)
        return self.times(num_tail_tokens + num_rows - 1) + (num_steps - 1) * self.times(num_rows)

    def _see(self, proposal: Proposal, waited_s: float) -> None:
        """Learns from a proposal that a round waited for."""
        if not proposal.tokens:
            return
        self._see_step(proposal)
        server, report = self._server, proposal.report
        server.overhead_s.add(max(0.0, waited_s - report.compute_us / 1e6))
        server.use(min(waited_s, self._forwards_s(report.num_tail_tokens, len(proposal))))

    def _see_step(self, proposal: Proposal) -> None:
        num_steps, _ = self._steps(1, max(1, len(proposal)))
        self._step_s = proposal.report.compute_us / 1e6 / num_steps

    def _learn(self, decided: Sequence[int]) -> None:
        """Learns from a round's tokens, of which the first ones may be drafts."""
        num_proposed, self._num_proposed = self._num_proposed, 0
        self._ahead_stats.verify_s.add(time.monotonic() - self._proposed_s)
        rates, num_accepted = self._rates, 0
        for token, draft in zip(decided, self._drafts[:num_proposed], strict=False):
            rates.learn("draft", token == draft)
            if token != draft:
                break
            num_accepted += 1
        if num_accepted < len(decided):
            # Otherwise not all of them were verified.
            rates.learn((num_proposed, self._is_short), num_accepted == num_proposed)

    def _miss(self, length: int) -> None:
        self._ahead_stats.num_misses += self._early_draft is not None
        self._drop(length)

    def _drop(self, length: int) -> None:
        if self._early_draft is not None:
            self._server.use(self._early_draft.used_s)
            answer, self._early_draft = self._early_draft.answer, None
            if answer.done() and not answer.cancelled() and isinstance(error := answer.exception(), ServerLost):
                with suppress(FatalRequest):
                    self._placement.on_lost(error)
            answer.cancel()
            self._sequence.drop(length)
