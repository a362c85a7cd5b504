"""The remote drafter: proposals from the draft server's model.

A fault of the draft server never fails a request. If the server is away, too slow or its cache is full, or if the context
exceeds the draft model's maximum length, decoding continues without proposals, and the drafter tries again later.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.ngram import NgramDrafter
from coordinator.remote.link import Link
from coordinator.remote.sequence import RemoteSequence
from coordinator.reports import DraftedBy, DraftReport
from paceline.checks import require, require_at_most
from paceline.errors import PacelineError
from paceline.rpc.messages import draft_mode_to_message, entropy_rule_to_message, floats_from_bytes
from paceline.speculation import EntropyAdaptive

# Until a time is known: a large model may have to read a long prompt first.
UNKNOWN_S = 30.0
# Waiting at least this long costs little, and servers pause for reasons of their own. Not shorter than the link's SILENT_S:
# so a server that has stopped is not asked again before it is heard.
LEAST_S = 2.0
# A draft may take this many times as long as is usual.
PATIENCE = 10.0
# Weight of the newest time.
RECENT = 0.1


class DraftDeadline:
    """Learns from all drafts of one draft server."""

    def __init__(self) -> None:
        self._token_s = 0.0

    def seconds(self, num_tokens: int) -> float:
        """Until when a draft that feeds or makes `num_tokens` tokens should be there."""
        if self._token_s == 0:
            return UNKNOWN_S
        return LEAST_S + PATIENCE * self._token_s * num_tokens

    def learn(self, num_tokens: int, seconds: float) -> None:
        """A draft took so long, waiting included."""
        token_s = seconds / max(1, num_tokens)
        self._token_s = token_s if self._token_s == 0 else self._token_s + RECENT * (token_s - self._token_s)


class DraftWait:
    """The wait for one draft. It begins anew whenever the command is sent: behind a correction of what the draft server's
    cache holds, it brings a longer tail along."""

    def __init__(self, deadline: DraftDeadline) -> None:
        self._deadline = deadline
        self._sent_s = time.monotonic()
        self._num_draft_tokens = 0
        # Tokens that the newest command brought along.
        self.num_tail_tokens = 0
        # A context for the wait, which raises TimeoutError.
        self.limit = asyncio.timeout(deadline.seconds(0))

    def begin(self, num_tail_tokens: int, num_draft_tokens: int) -> None:
        """A command is sent. Called inside of `limit`."""
        self.num_tail_tokens, self._num_draft_tokens = num_tail_tokens, num_draft_tokens
        self._sent_s = time.monotonic()
        seconds = self._deadline.seconds(num_tail_tokens + num_draft_tokens)
        self.limit.reschedule(asyncio.get_running_loop().time() + seconds)

    def learn(self) -> None:
        """The draft is there."""
        self._deadline.learn(self.num_tail_tokens + self._num_draft_tokens, self.seconds)

    @property
    def seconds(self) -> float:
        """Since the newest command was sent."""
        return time.monotonic() - self._sent_s


log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 8.0


class RemoteDrafter:
    """One generation's sequence on the draft server."""

    drafted_by = DraftedBy.MODEL

    def __init__(self, link: Link, request: Request, deadline: DraftDeadline) -> None:
        self._link = link
        self._deadline = deadline
        self._target_vocab_size = request.vocab_size
        speculation, sampling = request.speculation, request.sampling
        self._sequence = RemoteSequence(link, request, speculation.draft_sampling(sampling))
        self._draft_mode = draft_mode_to_message(speculation.resolved_draft_mode(sampling))
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s = 0.0
        length = speculation.num_draft_tokens
        self._entropy_rule = length if isinstance(length, EntropyAdaptive) else None
        # The entropy rule's state after the decided positions, and after each position of the last round.
        self._ema = 0.0
        self._round_emas: list[float] = []
        self._round_start = 0

    def absence(self, context: Context) -> str:
        """Why the model can't draft here, in words for a user; empty if it can."""
        if not self._link.is_up:
            return "draft server away"
        # A silent server would cost a whole deadline at each attempt.
        if self._link.is_silent or time.monotonic() < self._paused_until_s:
            return "draft server in trouble"
        return "" if self._room(context) >= 1 else "past the draft model's maximum length"

    async def propose(self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0) -> Proposal:
        """`least_confidence`: the model stops behind the token with which its confidence in all its tokens falls below
        this."""
        return await self._draft(context, num_draft_tokens, least_confidence)

    async def _draft(
        self, context: Context, num_draft_tokens: int, least_confidence: float, guess: Sequence[int] = ()
    ) -> Proposal:
        """`guess`: of the draft model's own next tokens, fewer than `num_draft_tokens`. It checks them in one forward."""
        if num_draft_tokens < 1:
            return Proposal()
        if absence := self.absence(context):
            return Proposal(report=DraftReport(reason=absence))
        num_draft_tokens = min(num_draft_tokens, self._room(context))
        wait = DraftWait(self._deadline)

        def fill(command: Any, position: int, tail: list[int]) -> None:
            wait.begin(len(tail), num_draft_tokens)
            propose = command.propose
            propose.position = position
            propose.tail_tokens.extend(tail)
            propose.num_draft_tokens = num_draft_tokens
            propose.draft_mode = self._draft_mode
            propose.least_confidence = least_confidence
            propose.guess_tokens.extend(guess)
            if self._entropy_rule is not None:
                propose.entropy_stop.rule.CopyFrom(entropy_rule_to_message(self._entropy_rule))
                propose.entropy_stop.entropy_ema = self._ema

        try:
            async with wait.limit:
                answer = await self._sequence.feed(context.tokens, fill, lambda answer: answer.num_fed_drafts)
            wait.learn()
            proposal = _proposal(answer, wait.num_tail_tokens, self.drafted_by, self._entropy_rule)
            self._check(proposal, num_draft_tokens)
        except (PacelineError, TimeoutError) as error:
            reason = str(error) or f"no draft came in {wait.seconds:.1f} s"
            log.info("drafting pauses for %.2f s: %s", self._pause_s, reason)
            self._paused_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
            return Proposal(report=DraftReport(reason="draft server in trouble"))
        self._pause_s = FIRST_PAUSE_S
        self._round_start = len(context)
        self._round_emas = proposal.report.smoothed_entropies
        return proposal

    @property
    def num_read(self) -> int:
        """Context tokens in the draft server's cache, as far as is known."""
        return self._sequence.length

    def truncate(self, length: int) -> None:
        self._sequence.truncate(length)
        # The positions 0 to `length` are decided: position `length` is that of the newest token.
        num_decided = min(len(self._round_emas), length + 1 - self._round_start)
        if num_decided > 0:
            self._ema = self._round_emas[num_decided - 1]
        self._round_emas = []

    def release(self) -> None:
        self._sequence.release()

    def _room(self, context: Context) -> int:
        """How many draft tokens fit into the draft model's maximum length: k of them feed n + k - 1 tokens."""
        card = self._link.card
        return card.max_model_len - len(context) + 1 if card is not None else 0

    def _check(self, proposal: Proposal, most: int) -> None:
        """Raises InvalidArgument for drafts that were not asked for, or that the target would refuse."""
        assert self._link.card is not None, "the server answered"
        require_at_most(most, len(proposal.tokens), "tokens", "tokens")
        # Models with the same tokens may be filled up to sizes of their own.
        vocab_size = min(self._link.card.vocab_size, self._target_vocab_size)
        worst = max((*proposal.tokens, *(int(support.max()) for support in proposal.supports)), default=0)
        require(worst < vocab_size, "tokens", worst, f"token ids in [0, {vocab_size})")


def _proposal(
    answer: Any, num_tail_tokens: int, drafted_by: DraftedBy, entropy_rule: EntropyAdaptive | None
) -> Proposal:
    """The proposal of an answer. Raises InvalidArgument if the sizes in the message do not match."""
    supports, probs = [], []
    if answer.support_sizes:
        sizes, num_drafts, num_ids = list(answer.support_sizes), len(answer.tokens), len(answer.support_token_ids)
        require(
            len(sizes) == num_drafts, "support_sizes", f"{len(sizes)} sizes", f"one for each of {num_drafts} drafts"
        )
        require(sum(sizes) == num_ids, "support_token_ids", f"{num_ids} ids", f"{sum(sizes)} ids")
        ends = np.cumsum(sizes)[:-1]
        supports = np.split(np.array(answer.support_token_ids, dtype=np.int64), ends)
        for token, support in zip(answer.tokens, supports, strict=True):
            require(bool((support == token).any()), "tokens", token, "in its own support")
        probs = np.split(floats_from_bytes(answer.support_probs, "support_probs", sum(sizes)), ends)
    entropies, smoothed = _entropies(answer) if entropy_rule is not None else ([], [])
    return Proposal(
        tokens=list(answer.tokens),
        supports=supports,
        support_probs=probs,
        report=DraftReport(
            drafter=drafted_by,
            reason="the draft model is unsure",
            num_tail_tokens=num_tail_tokens,
            computed_us=answer.computed_us,
            queued_us=answer.queued_us,
            entropies=entropies,
            smoothed_entropies=smoothed,
            allowed_draft_tokens=[entropy_rule.allowed_draft_tokens(each) for each in smoothed] if entropy_rule else [],
        ),
    )


def _entropies(answer: Any) -> tuple[list[float], list[float]]:
    """Of an answer under the entropy rule: entropies, and smoothed ones. Raises InvalidArgument, as a value outside of
    [0, 1] is no length of a draft, and no state that a server would take."""
    found: list[list[float]] = []
    for name in ("entropies", "entropy_emas"):
        packed: bytes = getattr(answer, name)
        values = floats_from_bytes(packed, name, len(packed) // 4).tolist()
        outside = next((each for each in values if not 0 <= each <= 1), None)
        require(outside is None, name, outside, "in [0, 1]")
        found.append(values)
    entropies, smoothed = found
    allowed = f"one for each of {len(entropies)} entropies"
    require(len(smoothed) == len(entropies), "entropy_emas", f"{len(smoothed)} values", allowed)
    return entropies, smoothed


class StandbyDrafter:
    """Proposes from `model` if it is available, otherwise from `ngram`."""

    def __init__(self, model: RemoteDrafter, ngram: NgramDrafter) -> None:
        self._model = model
        self._ngram = ngram

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        absence = self._model.absence(context)
        if not absence:
            return await self._model.propose(context, num_draft_tokens)
        proposal = await self._ngram.propose(context, num_draft_tokens)
        return proposal if proposal.tokens else Proposal(report=DraftReport(reason=f"{absence}, and no match"))

    def truncate(self, length: int) -> None:
        self._model.truncate(length)
        self._ngram.truncate(length)

    def release(self) -> None:
        self._model.release()
        self._ngram.release()
