"""Propose commands: converts their messages to jobs and results to messages."""

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from paceline.checks import require, require_at_most
from paceline.engine.cache.sequence import Sequence
from paceline.engine.engine import Engine
from paceline.engine.scheduling.commands import Start
from paceline.rpc.model_messages import draft_mode_from_message, entropy_rule_from_message, floats_to_bytes
from paceline.serving.entropy import EntropyStop
from paceline.serving.job_kind import JobKind
from paceline.serving.propose_job import ProposeJob, ProposeJobResult, ProposeSpec, Support
from paceline.speculation_params import MAX_DRAFT_TOKENS
from paceline.v1 import model_pb2

ALLOWED_NUM_DRAFT_TOKENS = f"in [1, {MAX_DRAFT_TOKENS}]"
# Returns a job that drafts a tail's continuation faster than token by token; None if it can't.
DraftMethod = Callable[[Sequence, list[int], ProposeSpec], ProposeJob | None]


class Proposing(JobKind):
    commands = ("propose",)
    result_class = ProposeJobResult
    takes_vocabulary: ClassVar[bool] = True

    def __init__(self, engine: Engine, support: Support, *methods: DraftMethod) -> None:
        """`methods`: the first that can draft does; without one, the model drafts token by token."""
        super().__init__(engine)
        self._support = support
        self._methods = methods

    def parse(self, command: model_pb2.Command) -> Start:
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
        min_probability = propose.min_probability
        require(0 <= min_probability <= 1, "min_probability", min_probability, "in [0, 1]")

        target_position = propose.target_position if propose.HasField("target_position") else None
        round_start = propose.round_start if propose.HasField("round_start") else None

        def make_job(sequence: Sequence, rest: list[int]) -> ProposeJob:
            stop = None if rule is None else EntropyStop(rule, ema)
            spec = ProposeSpec(
                wanted, draft_mode, self._support, stop, min_probability, max_choices, target_position, round_start, guess
            )  # fmt: skip
            jobs = (method(sequence, rest, spec) for method in self._methods)
            return next(filter(None, jobs), None) or ProposeJob(sequence, rest, spec)

        return Start(
            command.command_id,
            command.sequence_id,
            position=propose.position,
            tail=tail,
            num_more=wanted - 1,
            num_reusable=len(tail) - 1,
            make_job=make_job,
        )

    def fill(self, answer: model_pb2.Answer, result: ProposeJobResult) -> None:
        proposal = answer.proposal
        proposal.tokens.extend(result.tokens)
        proposal.first_position = result.first_position
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
        proposal.compute_us = result.compute_us
