"""The draft model's drafter.

A draft server's failure never fails a request: while it is unavailable, too slow or out of cache, n-grams propose, and for
good to a request that seems to kill draft servers.
"""

import logging
import time
from collections.abc import Sequence

import numpy as np

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.deadline import DraftDeadline, DraftWait
from coordinator.drafters.drafter import ModelDrafter
from coordinator.remote.placement import Placement
from coordinator.remote.sequence import RemoteSequence
from coordinator.remote.server_load import ForwardTimes
from coordinator.reports import DraftReport
from coordinator.request import Request
from paceline.backoff import Backoff
from paceline.checks import require, require_at_most
from paceline.errors import FatalRequest, PacelineError
from paceline.grammar import GRAMMAR_ENGINE
from paceline.rpc.model_messages import draft_mode_to_message, entropy_rule_to_message, floats_from_bytes
from paceline.speculation_params import MAX_DRAFT_TOKENS, EntropyAdaptive
from paceline.v1 import propose_pb2

log = logging.getLogger(__name__)

FIRST_PAUSE_S = 0.25
MAX_PAUSE_S = 8.0


class RemoteDrafter(ModelDrafter):
    name = "model"
    has_confidence = True

    def __init__(self, placement: Placement, request: Request, deadline: DraftDeadline) -> None:
        self._placement = placement
        self.draft_model = placement.model
        self._deadline = deadline
        self._target_vocab_size = request.vocab_size
        # Under a grammar the draft server takes one step after the other.
        self._is_guided = request.grammar is not None
        speculation, sampling = request.speculation, request.sampling
        self._sequence = RemoteSequence(placement, request, speculation.draft_sampling(sampling))
        self._draft_mode = draft_mode_to_message(speculation.resolved_draft_mode(sampling))
        self._backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        self._paused_until_s = 0.0
        length = speculation.num_speculative_tokens
        self._entropy_rule = length if isinstance(length, EntropyAdaptive) else None
        # The entropy's moving average after the decided positions, and after each position of the last round.
        self._ema = 0.0
        self._round_emas: Sequence[float] = ()
        # The first position that the round decides.
        self._round_start = 0

    def absence(self, context: Context) -> str:
        if self._placement.suspicion.is_refused:
            return "it may have killed draft servers"
        # An attempt with a silent server would wait for the whole timeout.
        if not self._placement.is_serving and not self._placement.migrate():
            return "draft server in trouble" if self._placement.link.is_up else "draft server away"
        if time.monotonic() < self._paused_until_s or self._placement.suspicion.must_wait:
            return "draft server in trouble"
        model_info = self._placement.link.model_info
        if self._is_guided and model_info is not None and model_info.grammar_engine != GRAMMAR_ENGINE:
            return f"the draft server does not have {GRAMMAR_ENGINE}"
        return "" if self._capacity(context) >= 1 else "past the draft model's maximum length"

    @property
    def times(self) -> ForwardTimes:
        return self._placement.link.forward_times

    @property
    def num_at_once(self) -> int:
        model_info = self._placement.link.model_info
        return 1 if model_info is None or self._is_guided else model_info.num_mask_tokens + 1

    @property
    def stops_early(self) -> bool:
        model_info = self._placement.link.model_info
        return model_info is not None and (self._is_guided or model_info.num_mask_tokens == model_info.multi_steps == 0)

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        return await self._draft(context, num_draft_tokens, min_probability, after)

    async def _draft(
        self,
        context: Context,
        num_draft_tokens: int,
        min_probability: float,
        after: Sequence[int] = (),
        guess: Sequence[int] = (),
    ) -> Proposal:
        """`guess`: fewer than `num_draft_tokens` tokens to check in one forward pass.

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
        tokens, self._round_start = self._prepare(context, after), len(context)
        wait = DraftWait(self._deadline)

        def fill(propose: propose_pb2.Propose) -> None:
            wait.begin(len(propose.tail_tokens), num_choices)
            self._fill(propose, num_draft_tokens, min_probability, num_choices, guess)

        try:
            async with wait.limit:
                answer = await self._placement.attempt(lambda: self._sequence.propose(tokens, fill))
            wait.learn()
            proposal = self._read(answer, wait.num_tail_tokens, num_draft_tokens)
        except (PacelineError, TimeoutError) as error:
            reason = str(error) or f"the draft timed out after {wait.seconds:.1f} s"
            if isinstance(error, FatalRequest):
                log.error("drafting ends: %s", reason)
            # A second failure in a row has other reasons than one server.
            elif self._backoff.is_first and self._placement.migrate():
                log.info("drafting goes on at %s: %s", self._placement.link.address, reason)
            else:
                log.info("drafting pauses for %.2f s: %s", self._backoff.pause_s, reason)
                self._paused_until_s = time.monotonic() + self._backoff.pause_s
            self._backoff.take()
            return Proposal(report=DraftReport(reason="draft server in trouble"))
        self._backoff.reset()
        self._round_emas = proposal.report.smoothed_entropies
        return proposal

    def _fill(
        self, propose: propose_pb2.Propose, num_draft_tokens: int, min_probability: float, num_choices: int,
        guess: Sequence[int] = (),
    ) -> None:  # fmt: skip
        propose.num_draft_tokens = num_draft_tokens
        propose.max_choices = num_choices
        propose.draft_mode = self._draft_mode
        propose.min_probability = min_probability
        propose.guess_tokens.extend(guess)
        propose.round_start = self._round_start
        if self._entropy_rule is not None:
            propose.entropy_stop.rule.CopyFrom(entropy_rule_to_message(self._entropy_rule))
            propose.entropy_stop.entropy_ema = self._ema

    def _read(self, answer: propose_pb2.Proposal, num_tail_tokens: int, num_asked: int) -> Proposal:
        """Raises InvalidArgument."""
        proposal = _proposal(answer, num_tail_tokens, self.name, self._placement.model, self._entropy_rule)
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
        self._placement.release()

    def _capacity(self, context: Context, after: Sequence[int] = ()) -> int:
        """Returns how many draft tokens fit: k of them feed n + k - 1 tokens."""
        model_info = self._placement.link.model_info
        return model_info.max_model_len - self._num_tokens(context, after) + 1 if model_info is not None else 0

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
        assert self._placement.link.model_info is not None, "the server answered"
        # Vocabularies with the same tokens may be padded to different sizes.
        return min(self._placement.link.model_info.vocab_size, self._target_vocab_size)

    def _check(self, proposal: Proposal, num_asked: int) -> None:
        """Raises InvalidArgument for excess tokens and unknown ids."""
        require_at_most(num_asked, len(proposal.tokens), "tokens", "tokens")
        vocab_size, worst = self._vocab_size, max(proposal.tokens, default=0)
        if proposal.supports:
            worst = max(worst, *(int(support.max()) for support in proposal.supports))
        require(worst < vocab_size, "tokens", worst, f"token ids in [0, {vocab_size})")


def _proposal(
    answer: propose_pb2.Proposal,
    num_tail_tokens: int,
    name: str,
    draft_model: str,
    entropy_rule: EntropyAdaptive | None,
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
            draft_model=draft_model,
            num_tail_tokens=num_tail_tokens,
            compute_us=answer.compute_us,
            queued_us=answer.queued_us,
            reason="the draft model is unsure",
            entropies=entropies,
            smoothed_entropies=smoothed,
            confidences=_confidences(answer),
            allowed_draft_tokens=[entropy_rule.allowed_draft_tokens(each) for each in smoothed] if entropy_rule else [],
        ),
    )


def _confidences(answer: propose_pb2.Proposal) -> list[float]:
    """Reads the tokens' probabilities. Raises InvalidArgument unless there is one in [0, 1] for each, or none."""
    if not answer.confidences:
        return []
    values = floats_from_bytes(answer.confidences, "confidences", len(answer.tokens)).tolist()
    outside = next((each for each in values if not 0 <= each <= 1), None)
    require(outside is None, "confidences", outside, "in [0, 1]")
    return values


def _entropies(answer: propose_pb2.Proposal) -> tuple[list[float], list[float]]:
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
