import asyncio
import hashlib
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.acceptance import PositionLogprobs, Proposal, VerifyResult
from coordinator.context import Context
from coordinator.remote.placement import Placement
from coordinator.remote.sequence import RemoteSequence
from coordinator.reports import NO_DRAFT_REPORT, DraftReport, NextDrafts, VerifyReport
from coordinator.request import Request, may_use_head
from paceline.checks import require
from paceline.errors import ConfigError, InvalidArgument
from paceline.results import TokenLogprobs
from paceline.rpc.model_messages import floats_from_bytes, rule_to_message
from paceline.speculation_params import Rule
from paceline.v1 import model_pb2, verify_pb2

# Proposals of which the target may check one only now.
MOST_SUGGESTED = 4
# For a round that had already begun when the drafts were found.
LATE_REPORT = DraftReport(reason="the drafts are for the next round: the target had begun this one by itself")


class RemoteTarget:
    """One generation's sequence on a target server."""

    def __init__(self, placement: Placement, request: Request, timeout_s: float) -> None:
        self._placement = placement
        self._sequence = RemoteSequence(placement, request, uses_draft_head=may_use_head(request))
        self._sampling = request.sampling
        self._rule = request.speculation.resolved_rule(request.sampling)
        self._lenience = request.speculation.lenience
        self._scores = request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None
        self._timeout_s = timeout_s
        # The newest proposals that the target got while it went on by itself.
        self._suggested = deque[Proposal](maxlen=MOST_SUGGESTED)

    async def verify(self, context: Context, proposal: Proposal) -> tuple[Proposal, VerifyResult]:
        """Returns what was verified, which is not `proposal` if that may come late, and the result.

        Raises Unavailable after the timeout.
        """
        rule = proposal.checked_by(self._rule)
        num_prompt_logprobs = self._sampling.prompt_logprobs if context.num_generated == 0 else None
        # Log-probabilities of a long prompt that precede the verify result.
        parts: list[verify_pb2.Logprobs] = []

        def fill(verify: verify_pb2.Verify) -> None:
            parts.clear()
            verify.rule = rule_to_message(rule)
            if rule is Rule.REJECTION:
                verify.support_token_ids.extend(np.concatenate(proposal.supports).tolist())
                verify.support_sizes.extend(len(support) for support in proposal.supports)
            if self._lenience < 1 and self._sampling.is_greedy:
                verify.lenience = self._lenience
            if self._sampling.logprobs is not None:
                verify.logprobs = self._sampling.logprobs
            if num_prompt_logprobs is not None:
                verify.prompt_logprobs = num_prompt_logprobs
            if proposal.ask_next is not None:
                proposal.ask_next(self._placement.link, verify)
            if proposal.num_next and self._placement.link.draft_head_times is not None:
                verify.num_next_drafts = proposal.num_next
                verify.next_min_probability = proposal.next_min_probability

        if proposal.may_come_late and proposal.tokens:
            self._suggested.append(proposal)
        drafts, answer = await self._placement.retry(
            self._timeout_s,
            lambda: self._sequence.verify(
                context.tokens,
                proposal.tokens,
                fill,
                parts.append,
                proposal.num_more_rounds,
                proposal.may_come_late,
                proposal.stops_target,
            ),
        )
        if len(drafts) != len(proposal) or answer.suggested_tokens:
            proposal = Proposal(list(drafts), report=self._report_of(drafts))
        if context.num_generated == 0:
            self._placement.learn_cached(answer.cached_tokens)
        verify_result = verify_result_from_answer(answer, proposal, rule, self._lenience, self._sequence.is_free)
        if not self._scores:
            return proposal, verify_result
        logprobs: list[PositionLogprobs] = []
        if self._sampling.logprobs is not None:
            candidates = _candidates(verify_result, proposal, rule)
            logprobs = _unpack_logprobs(answer.logprobs, candidates, self._sampling.logprobs)
        of_prompt: list[TokenLogprobs] = []
        if num_prompt_logprobs is not None:
            of_prompt = await self._score(context.tokens[1:], [*parts, answer.prompt_logprobs])
        report = replace(verify_result.report, prompt_logprobs=of_prompt)
        return proposal, replace(verify_result, logprobs=logprobs, report=report)

    def _report_of(self, drafts: Sequence[int]) -> DraftReport:
        """Returns the report of drafts that were sent ahead for this round; without any, LATE_REPORT."""
        if not drafts:
            return LATE_REPORT
        reports = (each.report for each in reversed(self._suggested) if each.tokens[-len(drafts) :] == list(drafts))
        return replace(next(reports, NO_DRAFT_REPORT), num_asked=len(drafts))

    async def _score(self, tokens: list[int], parts: list[verify_pb2.Logprobs]) -> list[TokenLogprobs]:
        """Unpacks log-probabilities from parts. Raises InvalidArgument if sizes do not match."""
        assert self._sampling.prompt_logprobs is not None
        scored: list[TokenLogprobs] = []
        for part in parts:
            of_part = tokens[len(scored) : len(scored) + len(part.chosen) // 4]
            positions = _unpack_logprobs(part, [[token] for token in of_part], self._sampling.prompt_logprobs)
            scored += [at.of(token) for at, token in zip(positions, of_part, strict=True)]
            await asyncio.sleep(0)
        require(len(scored) == len(tokens), "prompt_logprobs", f"{len(scored)} tokens", f"{len(tokens)} tokens")
        return scored

    def truncate(self, length: int) -> None:
        self._sequence.truncate(length)

    def release(self, continued: Sequence[int] = ()) -> None:
        """As `RemoteSequence.release`."""
        self._sequence.release(continued)
        self._placement.release()


def verify_result_from_answer(
    answer: verify_pb2.VerifyResult, proposal: Proposal, rule: Rule, lenience: float, is_free: bool = False
) -> VerifyResult:
    """Raises InvalidArgument if sizes do not match."""
    tokens, num_matched = list(answer.tokens), proposal.num_matched(rule)
    sizes = [len(support) for support in proposal.supports] if rule is Rule.REJECTION else []
    report = VerifyReport(
        answer.cached_tokens, answer.compute_us, answer.queued_us, next_drafts=_next_drafts(answer),
        drafting_us=answer.drafting_us, is_free=is_free,
    )  # fmt: skip
    first_invalid_position = answer.first_invalid_position if answer.HasField("first_invalid_position") else None
    _require_count("tokens", tokens, num_matched + 1)
    if not sizes:
        accepts = list(answer.lenient_accepts)
        if accepts:
            _require_count("lenient_accepts", accepts, num_matched)
        return VerifyResult(
            tokens,
            lenient_accepts=accepts,
            rule=rule,
            lenience=lenience,
            first_invalid_position=first_invalid_position,
            report=report,
        )
    _require_count("outside_tokens", answer.outside_tokens, len(sizes))
    probs = floats_from_bytes(answer.support_probs, "support_probs", sum(sizes))
    masses = floats_from_bytes(answer.outside_masses, "outside_masses", len(sizes), "<f8")
    return VerifyResult(
        tokens=tokens,
        support_probs=np.split(probs, np.cumsum(sizes)[:-1]),
        outside_masses=masses.tolist(),
        outside_tokens=list(answer.outside_tokens),
        rule=rule,
        lenience=lenience,
        first_invalid_position=first_invalid_position,
        report=report,
    )


def _next_drafts(answer: verify_pb2.VerifyResult) -> NextDrafts | None:
    following = answer.next_drafts
    if not following.tokens:
        return None
    confidences = floats_from_bytes(following.confidences, "next_drafts.confidences", len(following.tokens)).tolist()
    # They cost no answer, whatever a head computes.
    num = next((at for at, each in enumerate(confidences) if not 0 <= each <= 1), len(confidences))
    return NextDrafts(following.first_position, list(following.tokens[:num]), confidences[:num])


def _require_count(name: str, values: Sequence[Any], count: int) -> None:
    # The texts are made only for an error: this runs in every round.
    if len(values) != count:
        raise InvalidArgument.of_value(name, f"{len(values)} values", f"{count} values")


def _candidates(verify_result: VerifyResult, proposal: Proposal, rule: Rule) -> list[list[int]]:
    """Returns the ids whose log-probabilities the target sends (VerifyResult.logprobs in verify.proto)."""
    if rule is Rule.MATCH and verify_result.lenient_accepts:
        judged = [list(pair) for pair in zip(verify_result.tokens, proposal.tokens, strict=False)]
        return [*judged, verify_result.tokens[-1:]]
    *matched, bonus = ([token] for token in verify_result.tokens)
    # Under `match` nothing is drawn outside supports.
    sampled = zip(proposal.supports, verify_result.outside_tokens, strict=False)
    return [*matched, *([*support.tolist(), outside] for support, outside in sampled), bonus]


def _unpack_logprobs(message: verify_pb2.Logprobs, candidates: list[list[int]], num_top: int) -> list[PositionLogprobs]:
    """`candidates`: ids of `message.chosen` by position. Raises InvalidArgument if sizes do not match."""
    sizes = [len(ids) for ids in candidates]
    values = floats_from_bytes(message.chosen, "logprobs.chosen", sum(sizes))
    chosen = np.split(values, np.cumsum(sizes)[:-1]) if sizes else []
    num_positions = len(candidates)
    ids = np.array(message.top_token_ids, dtype=np.int64).reshape(num_positions, num_top)
    top = floats_from_bytes(message.top, "logprobs.top", num_positions * num_top).reshape(num_positions, num_top)
    return [
        # The first occurrence counts: an outside token of mass 0 may repeat an id of the support.
        PositionLogprobs(dict(zip(reversed(of), reversed(values.tolist()), strict=True)), ids[at].tolist(), top[at].tolist())
        for at, (of, values) in enumerate(zip(candidates, chosen, strict=True))
    ]  # fmt: skip


# Fields of the model info that determine the output.
IDENTITY = {
    "weights_fingerprint": "weights",
    "tokenizer_fingerprint": "tokenizer",
    "dtype": "dtype",
    "quantization": "quantization",
    "implementation": "implementation of the layers",
    "kv_cache_dtype": "KV cache dtype",
    "device": "device",
    "max_model_len": "maximum length",
    "numerics": "numerics (kind of processor, or version of its libraries)",
    "grammar_engine": "library for output formats",
}


def identity_of(model_info: model_pb2.ModelInfo) -> str:
    """Returns a digest of what determines a target's tokens."""
    return hashlib.sha256(repr([getattr(model_info, field) for field in IDENTITY]).encode()).hexdigest()[:16]


class SameModel:
    """Refuses targets with another model than the first: tokenizer and running generations are that one's."""

    def __init__(self) -> None:
        self._first: model_pb2.ModelInfo | None = None

    def check(self, address: str, model_info: model_pb2.ModelInfo) -> None:
        """Raises ConfigError naming the difference."""
        first = self._first = self._first or model_info
        for field, name in IDENTITY.items():
            before, now = getattr(first, field), getattr(model_info, field)
            if before != now:
                raise ConfigError(
                    f"the target server at {address} has another {name}: {now!r} in place of {before!r} "
                    f"({model_info.name!r}, at first {first.name!r}); start the coordinator again to use it"
                )
