"""The Draft service: converts Propose messages to jobs and results to messages."""

from typing import Any

import numpy as np

from draft_server.drafter import ProposeJob, ProposeResult, ProposeSpec, Support
from draft_server.entropy import EntropyStop
from draft_server.guessed_drafter import GuessedProposeJob, can_check_guesses
from draft_server.parallel_drafter import ParallelProposeJob, can_draft_in_parallel
from paceline.checks import require, require_at_most
from paceline.engine.cache.sequence import Sequence
from paceline.engine.engine import Engine
from paceline.engine.scheduling.commands import Command, Start
from paceline.rpc.messages import (
    draft_mode_from_message,
    entropy_rule_from_message,
    floats_to_bytes,
    vocabulary_from_message,
)
from paceline.serving.servicer import ModelServicer
from paceline.speculation import MAX_DRAFT_TOKENS
from paceline.v1 import draft_pb2
from paceline.vocabulary import SharedVocabulary

ALLOWED_NUM_DRAFT_TOKENS = f"in [1, {MAX_DRAFT_TOKENS}]"


class DraftServicer(ModelServicer):
    response_class = draft_pb2.DraftResponse

    def __init__(self, engine: Engine, support: Support) -> None:
        super().__init__(engine)
        self._support = support
        self._mask_ids = [engine.model.vocab_size + index for index in range(engine.num_masks)]

    def parse_vocabulary(self, request: Any) -> SharedVocabulary | None:
        if not request.HasField("vocabulary"):
            return None
        vocabulary = vocabulary_from_message(request.vocabulary)
        self.check_tokens("draft_token_ids", request.vocabulary.draft_token_ids)
        return vocabulary

    def parse_job(self, command: Any) -> Command:
        propose = command.propose
        tail, wanted = list(propose.tail_tokens), propose.num_draft_tokens
        require(len(tail) >= 1, "tail_tokens", "empty", "at least one token")
        require(1 <= wanted <= MAX_DRAFT_TOKENS, "num_draft_tokens", wanted, ALLOWED_NUM_DRAFT_TOKENS)
        self.check_tokens("tail_tokens", tail)
        require_at_most(MAX_DRAFT_TOKENS, len(propose.guess_tokens), "guess_tokens", "tokens")
        guess = list(propose.guess_tokens)
        self.check_tokens("guess_tokens", guess)
        draft_mode, rule, ema = draft_mode_from_message(propose), None, 0.0
        if propose.HasField("entropy_stop"):
            rule, ema = entropy_rule_from_message(propose.entropy_stop.rule), propose.entropy_stop.entropy_ema
            require(0 <= ema <= 1, "entropy_stop.entropy_ema", ema, "in [0, 1]")
        max_choices = propose.max_choices or wanted
        require(max_choices <= MAX_DRAFT_TOKENS, "max_choices", max_choices, f"in [0, {MAX_DRAFT_TOKENS}]")
        least_confidence = propose.least_confidence
        require(0 <= least_confidence <= 1, "least_confidence", least_confidence, "in [0, 1]")

        target_position = propose.target_position if propose.HasField("target_position") else None

        def make_job(sequence: Sequence, rest: list[int]) -> ProposeJob:
            stop = None if rule is None else EntropyStop(rule, ema)
            spec = ProposeSpec(wanted, draft_mode, self._support, stop, least_confidence, max_choices, target_position)
            if sequence.guide is not None:
                # What may follow a draft depends on it.
                return ProposeJob(sequence, rest, spec)
            if can_draft_in_parallel(len(self._mask_ids), sequence.options.sampling, spec):
                return ParallelProposeJob(sequence, rest, spec, self._mask_ids)
            if can_check_guesses(guess, sequence, spec):
                return GuessedProposeJob(sequence, rest, spec, guess)
            return ProposeJob(sequence, rest, spec)

        return Start(
            command.command_id,
            command.sequence_id,
            position=propose.position,
            tail=tail,
            num_more=wanted - 1,
            num_reusable=len(tail) - 1,
            make_job=make_job,
        )

    def fill_answer(self, message: Any, result: ProposeResult) -> None:
        proposal = message.proposal
        proposal.tokens.extend(result.tokens)
        if result.supports:
            proposal.support_token_ids.extend(np.concatenate(result.supports).tolist())
            proposal.support_sizes.extend(len(support) for support in result.supports)
            proposal.support_probs = floats_to_bytes(np.concatenate(result.support_probs))
        if result.entropies:
            proposal.entropies = floats_to_bytes(np.array(result.entropies))
            proposal.entropy_emas = floats_to_bytes(np.array(result.entropy_emas))
        if result.confidences:
            proposal.confidences = floats_to_bytes(np.array(result.confidences))
        proposal.num_fed_drafts = result.num_fed_drafts
        proposal.cached_tokens = result.cached_tokens
        proposal.queued_us = result.queued_us
        proposal.computed_us = result.computed_us
