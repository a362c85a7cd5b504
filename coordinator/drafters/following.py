"""Collects proposals that a colocated draft model makes without being asked by a message of its own.

Each Verify carries the next Propose. Once the target server knows the round's tokens, it passes them to the draft model in
its process, which drafts while the coordinator still processes the result:

    coordinator   Verify ──▶                        decides ─▶ Verify ──▶
    target                  forward pass ──▶ tokens
    draft                                   └─▶ k steps ─▶ proposal

Only for requests that use the draft model in every round. A proposal for a round with prompt lookup would be wasted, and
delay the target, which computes on the same thread.
"""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ahead import may_draft_ahead
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.remote.link import Link
from coordinator.remote.pending import ServerLost
from coordinator.remote.placement import Placement
from coordinator.remote.sequence import ComingProposal
from coordinator.request import Request
from paceline.errors import FatalRequest, PacelineError
from paceline.speculation_params import Drafter
from paceline.v1 import propose_pb2, verify_pb2


def may_follow(request: Request) -> bool:
    """Returns whether every round uses the draft model with the same length, and may start drafting early."""
    speculation = request.speculation
    is_fixed = speculation.drafter is Drafter.MODEL and isinstance(speculation.num_speculative_tokens, int)
    return is_fixed and not request.prediction and may_draft_ahead(request)


class FollowingDrafter(RemoteDrafter):
    """Serves requests that `may_follow`."""

    def __init__(self, placement: Placement, request: Request, deadline: DraftDeadline) -> None:
        super().__init__(placement, request, deadline)
        self._tokens: Sequence[int] = ()
        # The proposal that follows the round, and how many drafts it may have.
        self._coming: ComingProposal | None = None
        self._num_coming = 0
        # The fewest tokens kept after a round since it was asked for; None before that round's end.
        self._num_kept: int | None = None

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        self._tokens = context.tokens
        proposal = Proposal()
        if self._coming is not None and not after and num_draft_tokens > 0 and not self.absence(context):
            proposal = await self._collect(self._coming, num_draft_tokens)
        if not proposal.tokens:
            self._drop()
            proposal = await super().propose(context, num_draft_tokens, min_probability, after)
        num_next = min(num_draft_tokens, context.draft_room - 1, self._capacity(context, proposal.tokens) - 1)
        if proposal.tokens and not after and num_next > 0:
            proposal.ask_next = partial(self._ask_next, num_draft_tokens=num_next, min_probability=min_probability)
        return proposal

    def truncate(self, length: int) -> None:
        if self._coming is None:
            super().truncate(length)
        else:
            # The target server truncates before it goes on.
            self._num_kept = length if self._num_kept is None else min(length, self._num_kept)

    def release(self) -> None:
        # Undecided tokens must not be left to other requests.
        self._drop()
        super().release()

    def _ask_next(self, target: Link, verify: verify_pb2.Verify, num_draft_tokens: int, min_probability: float) -> None:
        """Asks for the proposal after a round, in its Verify. Not if that goes to another process."""
        # The Verify may be sent again, if it did not run before.
        self._cancel()
        if not target.has_draft(self._placement.link):
            return

        def fill(propose: propose_pb2.Propose) -> None:
            self._fill(propose, num_draft_tokens, min_probability, num_draft_tokens)
            # Noise depends on it only where drafts are sampled.
            propose.ClearField("round_start")

        self._num_coming, self._num_kept = num_draft_tokens, None
        self._coming = self._sequence.start_next(verify.next_propose, fill)

    async def _collect(self, coming: ComingProposal, num_draft_tokens: int) -> Proposal:
        """Waits for the proposal that follows the context. Returns an empty one if there is none."""
        if not self._sequence.length:
            # The server lost it, or is no longer this generation's.
            return Proposal()
        started_s = time.monotonic()
        try:
            async with asyncio.timeout(self._deadline.seconds(self._num_coming)):
                answer = await coming
            self._placement.suspicion.on_progress(1)
            proposal = self._read(answer, 1, self._num_coming)
        except (PacelineError, TimeoutError):
            return Proposal()
        if answer.first_position != len(self._tokens):
            # The round was decided otherwise.
            return Proposal()
        self._coming = None
        self._sequence.adopt(answer.first_position + answer.num_fed_drafts - self._sequence.length)
        waited_us = int((time.monotonic() - started_s) * 1e6)
        report = proposal.report
        compute_us = min(waited_us, report.compute_us)
        told = replace(
            report, compute_us=compute_us, queued_us=min(waited_us - compute_us, report.queued_us),
            confidences=report.confidences[:num_draft_tokens],
        )  # fmt: skip
        return Proposal(proposal.tokens[:num_draft_tokens], report=told)

    def _drop(self) -> None:
        if self._coming is not None:
            self._cancel()
            self._sequence.drop(len(self._tokens) - 1 if self._num_kept is None else self._num_kept)

    def _cancel(self) -> None:
        coming, self._coming = self._coming, None
        if coming is None or coming.cancel() or coming.cancelled():
            return
        # Before the round's end the draft model had nothing of it.
        if isinstance(error := coming.exception(), ServerLost) and self._num_kept is not None:
            with suppress(FatalRequest):
                self._placement.on_lost(error)
