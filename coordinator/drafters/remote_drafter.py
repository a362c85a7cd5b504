"""The draft model's drafter.

A draft server's failure never fails a request: while it is unavailable, too slow or out of cache, n-grams propose.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.deadline import DraftDeadline, DraftWait
from coordinator.drafters.drafter import ModelDrafter
from coordinator.remote.load import ForwardTimes
from coordinator.remote.place import DraftPlace
from coordinator.remote.sequence import RemoteSequence
from coordinator.reports import DraftReport
from paceline.checks import require, require_at_most
from paceline.errors import PacelineError
from paceline.grammar import GRAMMAR_ENGINE
from paceline.rpc.messages import draft_mode_to_message, entropy_rule_to_message, floats_from_bytes
from paceline.speculation import MAX_DRAFT_TOKENS, EntropyAdaptive
from paceline.v1 import draft_pb2

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 8.0


class RemoteDrafter(ModelDrafter):
    name = "model"
    has_confidence = True

    def __init__(self, place: DraftPlace, request: Request, deadline: DraftDeadline) -> None:
        self._place = place
        self.draft = place.model
        self._deadline = deadline
        self._target_vocab_size = request.vocab_size
        # Under a grammar the draft server takes one step after the other.
        self._is_guided = request.grammar is not None
        speculation, sampling = request.speculation, request.sampling
        self._sequence = RemoteSequence(place, request, speculation.draft_sampling(sampling))
        self._draft_mode = draft_mode_to_message(speculation.resolved_draft_mode(sampling))
        self._pause_s = FIRST_PAUSE_S
        self._paused_until_s = 0.0
        length = speculation.num_speculative_tokens
        self._entropy_rule = length if isinstance(length, EntropyAdaptive) else None
        # The entropy's moving average after the decided positions, and after each position of the last round.
        self._ema = 0.0
        self._round_emas: Sequence[float] = ()
        self._round_start = 0

    def absence(self, context: Context) -> str:
        # An attempt with a silent server would wait for the whole timeout.
        if not self._place.is_serving and not self._place.move():
            return "draft server in trouble" if self._place.link.is_up else "draft server away"
        if time.monotonic() < self._paused_until_s:
            return "draft server in trouble"
        card = self._place.link.card
        if self._is_guided and card is not None and card.grammar_engine != GRAMMAR_ENGINE:
            return f"the draft server does not have {GRAMMAR_ENGINE}"
        return "" if self._capacity(context) >= 1 else "past the draft model's maximum length"

    @property
    def times(self) -> ForwardTimes:
        return self._place.link.forward_times

    @property
    def num_at_once(self) -> int:
        card = self._place.link.card
        return 1 if card is None or self._is_guided else card.num_mask_tokens + 1

    @property
    def stops_early(self) -> bool:
        card = self._place.link.card
        return card is not None and (self._is_guided or card.num_mask_tokens == card.multi_steps == 0)

    async def propose(
        self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        return await self._draft(context, num_draft_tokens, least_confidence, after)

    async def _draft(
        self,
        context: Context,
        num_draft_tokens: int,
        least_confidence: float,
        after: Sequence[int] = (),
        guess: Sequence[int] = (),
    ) -> Proposal:
        """`guess`: fewer than `num_draft_tokens` tokens to check in one forward.

        Under a grammar `num_draft_tokens` counts choices, and forced tokens come on top.
        """
        if num_draft_tokens < 1:
            return Proposal()
        if absence := self.absence(context):
            return Proposal(report=DraftReport(reason=absence))
        num_choices = num_draft_tokens
        if self._is_guided:
            num_draft_tokens = min(MAX_DRAFT_TOKENS, context.draft_room) - len(after)
        num_draft_tokens = min(num_draft_tokens, self._capacity(context, after))
        if num_draft_tokens < 1:
            return Proposal()
        tokens = self._prepare(context, after)
        wait = DraftWait(self._deadline)

        def fill(command: draft_pb2.DraftCommand, position: int, tail: list[int]) -> None:
            wait.begin(len(tail), num_choices)
            self._fill(command, position, tail, num_draft_tokens, least_confidence, num_choices, guess)

        try:
            async with wait.limit:
                answer = await self._sequence.feed(tokens, fill, num_fed_drafts)
            wait.learn()
            proposal = self._read(answer, wait.num_tail_tokens, num_draft_tokens)
        except (PacelineError, TimeoutError) as error:
            reason = str(error) or f"the draft timed out after {wait.seconds:.1f} s"
            # A second failure in a row has other reasons than one server.
            if self._pause_s == FIRST_PAUSE_S and self._place.move():
                log.info("drafting goes on at %s: %s", self._place.link.address, reason)
            else:
                log.info("drafting pauses for %.2f s: %s", self._pause_s, reason)
                self._paused_until_s = time.monotonic() + self._pause_s
            self._pause_s = min(MAX_PAUSE_S, self._pause_s * 2)
            return Proposal(report=DraftReport(reason="draft server in trouble"))
        self._pause_s = FIRST_PAUSE_S
        self._round_start = len(context)
        self._round_emas = proposal.report.smoothed_entropies
        return proposal

    def _fill(
        self, command: draft_pb2.DraftCommand, position: int, tail: list[int], num_draft_tokens: int,
        least_confidence: float, num_choices: int, guess: Sequence[int] = (),
    ) -> None:  # fmt: skip
        propose = command.propose
        propose.position = position
        propose.tail_tokens.extend(tail)
        propose.num_draft_tokens = num_draft_tokens
        propose.max_choices = num_choices
        propose.draft_mode = self._draft_mode
        propose.least_confidence = least_confidence
        propose.guess_tokens.extend(guess)
        if self._entropy_rule is not None:
            propose.entropy_stop.rule.CopyFrom(entropy_rule_to_message(self._entropy_rule))
            propose.entropy_stop.entropy_ema = self._ema

    def _read(self, answer: draft_pb2.Proposal, num_tail_tokens: int, num_asked: int) -> Proposal:
        """Raises InvalidArgument."""
        proposal = _proposal(answer, num_tail_tokens, self.name, self._place.model, self._entropy_rule)
        self._check(proposal, num_asked)
        return proposal

    def num_cached(self, context: Context) -> int:
        return self._sequence.length

    def truncate(self, length: int) -> None:
        self._sequence.truncate(self._cached_length(length))
        # `length` is the newest token's position, which is decided too.
        num_decided = min(len(self._round_emas), length + 1 - self._round_start)
        if num_decided > 0:
            self._ema = self._round_emas[num_decided - 1]
        self._round_emas = ()

    def release(self) -> None:
        self._sequence.release()
        self._place.release()

    def _capacity(self, context: Context, after: Sequence[int] = ()) -> int:
        """Returns how many draft tokens fit: k of them feed n + k - 1 tokens."""
        card = self._place.link.card
        return card.max_model_len - self._num_tokens(context, after) + 1 if card is not None else 0

    def _prepare(self, context: Context, after: Sequence[int]) -> list[int]:
        """Prepares the sequence for a proposal. Returns the context as the draft model reads it."""
        return [*context.tokens, *after] if after else context.tokens

    def _cached_length(self, length: int) -> int:
        """Returns the number of its tokens for the first `length` tokens of the context."""
        return length

    def _num_tokens(self, context: Context, after: Sequence[int]) -> int:
        return len(context) + len(after)

    @property
    def _vocab_size(self) -> int:
        """Returns the number of ids that drafts may have."""
        assert self._place.link.card is not None, "the server answered"
        # Vocabularies with the same tokens may be padded to different sizes.
        return min(self._place.link.card.vocab_size, self._target_vocab_size)

    def _check(self, proposal: Proposal, num_asked: int) -> None:
        """Raises InvalidArgument for excess tokens and unknown ids."""
        require_at_most(num_asked, len(proposal.tokens), "tokens", "tokens")
        vocab_size, worst = self._vocab_size, max(proposal.tokens, default=0)
        if proposal.supports:
            worst = max(worst, *(int(support.max()) for support in proposal.supports))
        require(worst < vocab_size, "tokens", worst, f"token ids in [0, {vocab_size})")


def num_fed_drafts(answer: draft_pb2.Proposal) -> int:
    return answer.num_fed_drafts


def _proposal(
    answer: draft_pb2.Proposal, num_tail_tokens: int, name: str, draft: str, entropy_rule: EntropyAdaptive | None
) -> Proposal:
    """Raises InvalidArgument if sizes do not match."""
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
            drafter=name,
            draft=draft,
            num_tail_tokens=num_tail_tokens,
            computed_us=answer.computed_us,
            queued_us=answer.queued_us,
            reason="the draft model is unsure",
            entropies=entropies,
            smoothed_entropies=smoothed,
            confidences=_confidences(answer),
            allowed_draft_tokens=[entropy_rule.allowed_draft_tokens(each) for each in smoothed] if entropy_rule else [],
        ),
    )


def _confidences(answer: draft_pb2.Proposal) -> list[float]:
    """Reads the tokens' probabilities. Raises InvalidArgument unless there is one in [0, 1] for each, or none."""
    if not answer.confidences:
        return []
    values = floats_from_bytes(answer.confidences, "confidences", len(answer.tokens)).tolist()
    outside = next((each for each in values if not 0 <= each <= 1), None)
    require(outside is None, "confidences", outside, "in [0, 1]")
    return values


def _entropies(answer: draft_pb2.Proposal) -> tuple[list[float], list[float]]:
    """Raises InvalidArgument for bad values or sizes."""
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
