"""The Target service: converts Verify messages to jobs and results to messages."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.checks import require, require_at_most
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.scheduling.commands import Command, Start
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.rpc.messages import floats_to_bytes, rule_from_message
from paceline.sampling import MAX_LISTED_IDS, MAX_LOGPROBS
from paceline.serving.servicer import ModelServicer
from paceline.speculation import MAX_DRAFT_TOKENS, Rule
from paceline.v1 import target_pb2
from target_server.verifier import VerifyJob, VerifyResult, VerifySpec

# In the supports of all drafts together.
MAX_SUPPORT_IDS = MAX_DRAFT_TOKENS * MAX_LISTED_IDS


@dataclass(frozen=True, slots=True)
class PromptPart:
    """Log-probabilities of a prompt, sent ahead of their verdict."""

    prompt_logprobs: list[RowLogprobs]


class TargetServicer(ModelServicer):
    response_class = target_pb2.TargetResponse

    def parse_job(self, command: Any) -> Command:
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
        )
        require(0 < spec.lenience <= 1, "lenience", spec.lenience, "in (0, 1]")
        return Start(
            command.command_id,
            command.sequence_id,
            position=verify.position,
            tail=tail,
            num_more=len(drafts),
            # The last tail token must be fed for its logits. To score the prompt, all must be fed.
            num_reusable=len(tail) - 1 if spec.num_prompt_logprobs is None else 0,
            make_job=lambda sequence, rest: VerifyJob(sequence, rest, spec),
        )

    def split_result(self, result: VerifyResult) -> Iterable[VerifyResult | PromptPart]:
        """Splits long prompts' log-probabilities into messages."""
        scored = result.prompt_logprobs
        if len(scored) <= SPLIT_POSITIONS:
            return (result,)
        parts = [scored[first : first + SPLIT_POSITIONS] for first in range(0, len(scored), SPLIT_POSITIONS)]
        return *map(PromptPart, parts[:-1]), replace(result, prompt_logprobs=parts[-1])

    def fill_answer(self, message: Any, result: VerifyResult | PromptPart) -> None:
        if isinstance(result, PromptPart):
            _fill_logprobs(message.prompt_logprobs, result.prompt_logprobs)
            return
        verdict = message.verdict
        verdict.tokens.extend(result.tokens)
        if result.complements:
            verdict.support_probs = floats_to_bytes(
                np.concatenate([complement.support_probs for complement in result.complements])
            )
            verdict.outside_masses = floats_to_bytes(
                np.array([complement.mass for complement in result.complements]), "<f8"
            )
            verdict.outside_tokens.extend(complement.token for complement in result.complements)
        if result.lenient_accepts:
            verdict.lenient_accepts.extend(result.lenient_accepts)
        if result.logprobs:
            _fill_logprobs(verdict.logprobs, result.logprobs)
        if result.prompt_logprobs:
            _fill_logprobs(verdict.prompt_logprobs, result.prompt_logprobs)
        if result.dead_end is not None:
            verdict.dead_end = result.dead_end
        verdict.cached_tokens = result.cached_tokens
        verdict.queued_us = result.queued_us
        verdict.computed_us = result.computed_us

    def _parse_supports(self, verify: Any, num_drafts: int) -> list[NDArray[np.int64]]:
        sizes = list(verify.support_sizes)
        require(
            len(sizes) == num_drafts, "support_sizes", f"{len(sizes)} sizes", f"one for each of {num_drafts} drafts"
        )
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


def _num_logprobs(verify: Any, name: str) -> int | None:
    if not verify.HasField(name):
        return None
    wanted: int = getattr(verify, name)
    require(wanted <= MAX_LOGPROBS, name, wanted, f"in [0, {MAX_LOGPROBS}]")
    return wanted


def _fill_logprobs(message: Any, row_logprobs: list[RowLogprobs]) -> None:
    message.chosen = floats_to_bytes(np.concatenate([each.chosen for each in row_logprobs]))
    message.top_token_ids.extend(np.concatenate([each.top_ids for each in row_logprobs]).tolist())
    message.top = floats_to_bytes(np.concatenate([each.top for each in row_logprobs]))
