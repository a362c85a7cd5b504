"""Verify commands: converts their messages to jobs and results to messages."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from paceline.checks import require, require_at_most
from paceline.engine.engine import Engine
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.scheduling.commands import Command, Start, Suggest
from paceline.errors import InvalidArgument
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.rpc.model_messages import floats_to_bytes, rule_from_message
from paceline.sampling_params import MAX_LISTED_IDS, MAX_LOGPROBS
from paceline.serving.job_kind import JobKind
from paceline.serving.servicer import ModelServicer
from paceline.speculation_params import MAX_DRAFT_TOKENS, Rule
from paceline.v1 import model_pb2, verify_pb2
from target_server.verify_job import DraftNext, VerifyJobResult, VerifySpec, start_of

# That the server goes on with by itself.
MAX_MORE_ROUNDS = 64
# In the supports of all drafts together.
MAX_SUPPORT_IDS = MAX_DRAFT_TOKENS * MAX_LISTED_IDS


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Log-probabilities of a prompt, sent ahead of their verify result."""

    prompt_logprobs: list[RowLogprobs]


class Verifying(JobKind):
    commands = ("verify", "suggest")
    result_class = VerifyJobResult

    def __init__(self, engine: Engine, draft: ModelServicer | None = None) -> None:
        """`draft`: of the draft model in this process, if there is one."""
        super().__init__(engine)
        self._draft = draft
        self._has_draft_head = engine.draft_head is not None

    def parse(self, command: model_pb2.Command) -> Start | Suggest:
        return self._parse_suggest(command) if command.HasField("suggest") else self._parse_verify(command)

    def _parse_suggest(self, command: model_pb2.Command) -> Suggest:
        suggest = command.suggest
        require_at_most(MAX_DRAFT_TOKENS, len(suggest.tokens), "tokens", "tokens")
        self.check_tokens("tokens", suggest.tokens)
        return Suggest(command.command_id, command.sequence_id, suggest.position, list(suggest.tokens), suggest.is_last)

    def _parse_verify(self, command: model_pb2.Command) -> Start:
        verify = command.verify
        require_at_most(MAX_DRAFT_TOKENS, len(verify.draft_tokens), "draft_tokens", "tokens")
        require_at_most(MAX_SUPPORT_IDS, len(verify.support_token_ids), "support_token_ids", "ids")
        tail, drafts = list(verify.tail_tokens), list(verify.draft_tokens)
        require(len(tail) >= 1, "tail_tokens", "empty", "at least one token")
        self.check_tokens("tail_tokens", tail)
        if drafts:
            self.check_tokens("draft_tokens", drafts)
        rule = rule_from_message(verify)
        spec = VerifySpec(
            drafts=drafts,
            supports=self._parse_supports(verify, len(drafts)) if rule is Rule.REJECTION else [],
            rule=rule,
            lenience=verify.lenience if verify.HasField("lenience") else 1.0,
            num_logprobs=_num_logprobs(verify, "logprobs"),
            num_prompt_logprobs=_num_logprobs(verify, "prompt_logprobs"),
            draft_next=self._draft_next(verify.next_propose) if verify.HasField("next_propose") else None,
            num_next_drafts=verify.num_next_drafts,
            next_min_probability=verify.next_min_probability,
            num_more_rounds=verify.num_more_rounds,
        )
        require(0 < spec.lenience <= 1, "lenience", spec.lenience, "in (0, 1]")
        is_plain = rule is Rule.MATCH and spec.lenience == 1
        for field, is_set in (
            ("next_propose", spec.draft_next is not None),
            ("num_next_drafts", spec.num_next_drafts),
            ("num_more_rounds", spec.num_more_rounds),
        ):
            require(is_plain or not is_set, field, "set", "left out under `rejection` and with lenience")
        self._check_next_drafts(spec)
        most = MAX_MORE_ROUNDS if spec.draft_next is None else 0
        require(spec.num_more_rounds <= most, "num_more_rounds", spec.num_more_rounds, f"in [0, {most}]")
        return start_of(Command(command.command_id, command.sequence_id), verify.position, tail, spec)

    def split(self, result: VerifyJobResult) -> Iterable[VerifyJobResult | PromptPart]:
        """Splits long prompts' log-probabilities into messages."""
        scored = result.prompt_logprobs
        if len(scored) <= SPLIT_POSITIONS:
            return (result,)
        parts = [scored[first : first + SPLIT_POSITIONS] for first in range(0, len(scored), SPLIT_POSITIONS)]
        return *map(PromptPart, parts[:-1]), replace(result, prompt_logprobs=parts[-1])

    def fill(self, answer: model_pb2.Answer, result: VerifyJobResult | PromptPart) -> None:
        if isinstance(result, PromptPart):
            _fill_logprobs(answer.prompt_logprobs, result.prompt_logprobs)
            return
        verify_result = answer.verify_result
        verify_result.tokens.extend(result.tokens)
        if result.complements:
            verify_result.support_probs = floats_to_bytes(
                np.concatenate([complement.support_probs for complement in result.complements])
            )
            verify_result.outside_masses = floats_to_bytes(
                np.array([complement.mass for complement in result.complements]), "<f8"
            )
            verify_result.outside_tokens.extend(complement.token for complement in result.complements)
        if result.lenient_accepts:
            verify_result.lenient_accepts.extend(result.lenient_accepts)
        if result.logprobs:
            _fill_logprobs(verify_result.logprobs, result.logprobs)
        if result.prompt_logprobs:
            _fill_logprobs(verify_result.prompt_logprobs, result.prompt_logprobs)
        if result.first_invalid_position is not None:
            verify_result.first_invalid_position = result.first_invalid_position
        verify_result.cached_tokens = result.cached_tokens
        verify_result.queued_us = result.queued_us
        verify_result.compute_us = result.compute_us
        verify_result.drafting_us = result.drafting_us
        if result.suggested_tokens:
            verify_result.suggested_tokens.extend(result.suggested_tokens)
        if (following := result.next_drafts) is not None:
            verify_result.next_drafts.first_position = following.position
            verify_result.next_drafts.tokens.extend(following.tokens)
            verify_result.next_drafts.confidences = floats_to_bytes(np.array(following.confidences))

    def _check_next_drafts(self, spec: VerifySpec) -> None:
        """Raises InvalidArgument."""
        asked, probability = spec.num_next_drafts, spec.next_min_probability
        require(asked <= MAX_DRAFT_TOKENS, "num_next_drafts", asked, f"in [0, {MAX_DRAFT_TOKENS}]")
        require(not asked or self._has_draft_head, "num_next_drafts", asked, "0: the server has no draft head")
        require(0 <= probability <= 1, "next_min_probability", probability, "in [0, 1]")

    def _draft_next(self, wanted: verify_pb2.NextPropose) -> DraftNext:
        """Raises InvalidArgument."""
        draft = self._draft
        if draft is None:
            raise InvalidArgument.of_value("next_propose", "set", "left out: no draft model is in this process")
        for name in ("tail_tokens", "guess_tokens"):
            require(not getattr(wanted.propose, name), f"next_propose.propose.{name}", "set", "left out")
        # Not the whole request that it came with.
        following = model_pb2.Command(
            sequence_id=wanted.sequence_id, command_id=wanted.command_id, propose=wanted.propose
        )
        session_id, sequence_id, cache_length = wanted.session_id, wanted.sequence_id, wanted.cache_length

        def propose(num_kept: int, tail: list[int]) -> None:
            following.propose.position = num_kept
            following.propose.tail_tokens.extend(tail)
            truncate = model_pb2.Command(sequence_id=sequence_id, truncate=model_pb2.Truncate(length=num_kept))
            draft.execute(session_id, [truncate, following] if num_kept < cache_length else [following])

        return DraftNext(cache_length, propose)

    def _parse_supports(self, verify: verify_pb2.Verify, num_drafts: int) -> list[NDArray[np.int64]]:
        sizes = list(verify.support_sizes)
        at_most = f"at most one for each of {num_drafts} drafts"
        require(len(sizes) <= num_drafts, "support_sizes", f"{len(sizes)} sizes", at_most)
        require(all(sizes), "support_sizes", 0, ">= 1: a draft is in its own support")
        ids = np.array(verify.support_token_ids, dtype=np.int64)
        require(
            len(ids) == sum(sizes), "support_token_ids", f"{len(ids)} ids", f"{sum(sizes)} ids, as support_sizes say"
        )
        self.check_tokens("support_token_ids", verify.support_token_ids)
        supports = np.split(ids, np.cumsum(sizes)[:-1]) if sizes else []
        for support in supports:
            require(
                len(np.unique(support)) == len(support),
                "support_token_ids",
                "repeated ids",
                "different within a support",
            )
        return supports


def _num_logprobs(verify: verify_pb2.Verify, name: str) -> int | None:
    if not verify.HasField(name):
        return None
    wanted: int = getattr(verify, name)
    require(wanted <= MAX_LOGPROBS, name, wanted, f"in [0, {MAX_LOGPROBS}]")
    return wanted


def _fill_logprobs(message: verify_pb2.Logprobs, row_logprobs: list[RowLogprobs]) -> None:
    message.chosen = floats_to_bytes(np.concatenate([each.chosen for each in row_logprobs]))
    message.top_token_ids.extend(np.concatenate([each.top_ids for each in row_logprobs]).tolist())
    message.top = floats_to_bytes(np.concatenate([each.top for each in row_logprobs]))
