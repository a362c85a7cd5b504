import asyncio
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from coordinator.acceptance import PositionLogprobs, Proposal, Verdict
from coordinator.context import Context, Request
from coordinator.remote.place import TargetPlace
from coordinator.remote.sequence import RemoteSequence
from coordinator.reports import VerifyReport
from paceline.checks import require
from paceline.errors import ConfigError, InvalidArgument
from paceline.results import TokenLogprobs
from paceline.rpc.messages import floats_from_bytes, rule_to_message
from paceline.speculation import Rule
from paceline.v1 import model_pb2, target_pb2


class RemoteTarget:
    """One generation's sequence on a target server."""

    def __init__(self, place: TargetPlace, request: Request, timeout_s: float) -> None:
        self._place = place
        self._sequence = RemoteSequence(place, request)
        self._sampling = request.sampling
        self._rule = request.speculation.resolved_rule(request.sampling)
        self._lenience = request.speculation.lenience
        self._scores = request.sampling.logprobs is not None or request.sampling.prompt_logprobs is not None
        self._timeout_s = timeout_s

    async def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """Raises Unavailable after the timeout."""
        rule = proposal.checked_by(self._rule)
        num_prompt_logprobs = self._sampling.prompt_logprobs if context.num_generated == 0 else None
        # Log-probabilities of a long prompt that precede the verdict.
        parts: list[target_pb2.Logprobs] = []

        def fill(command: target_pb2.TargetCommand, position: int, tail: list[int]) -> None:
            parts.clear()
            verify = command.verify
            verify.position = position
            verify.tail_tokens.extend(tail)
            if proposal.tokens:
                verify.draft_tokens.extend(proposal.tokens)
            verify.rule = rule_to_message(rule)
            if proposal.supports:
                verify.support_token_ids.extend(np.concatenate(proposal.supports).tolist())
                verify.support_sizes.extend(len(support) for support in proposal.supports)
            if self._lenience < 1 and self._sampling.is_greedy:
                verify.lenience = self._lenience
            if self._sampling.logprobs is not None:
                verify.logprobs = self._sampling.logprobs
            if num_prompt_logprobs is not None:
                verify.prompt_logprobs = num_prompt_logprobs

        answer = await self._place.retry(
            self._timeout_s,
            lambda: self._sequence.feed(context.tokens, fill, lambda answer: len(proposal), parts.append),
        )
        if context.num_generated == 0:
            self._place.learn_cached(answer.cached_tokens)
        verdict = verdict_from_answer(answer, proposal, rule, self._lenience)
        if not self._scores:
            return verdict
        logprobs: list[PositionLogprobs] = []
        if self._sampling.logprobs is not None:
            candidates = _candidates(verdict, proposal, rule)
            logprobs = _unpack_logprobs(answer.logprobs, candidates, self._sampling.logprobs)
        of_prompt: list[TokenLogprobs] = []
        if num_prompt_logprobs is not None:
            of_prompt = await self._score(context.tokens[1:], [*parts, answer.prompt_logprobs])
        return replace(verdict, logprobs=logprobs, report=replace(verdict.report, prompt_logprobs=of_prompt))

    async def _score(self, tokens: list[int], parts: list[target_pb2.Logprobs]) -> list[TokenLogprobs]:
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

    def release(self) -> None:
        self._sequence.release()
        self._place.release()


def verdict_from_answer(answer: target_pb2.Verdict, proposal: Proposal, rule: Rule, lenience: float) -> Verdict:
    """Raises InvalidArgument if sizes do not match."""
    tokens, num_drafts = list(answer.tokens), len(proposal.tokens)
    report = VerifyReport(answer.cached_tokens, answer.computed_us, answer.queued_us)
    dead_end = answer.dead_end if answer.HasField("dead_end") else None
    if rule is Rule.MATCH or num_drafts == 0:
        _require_count("tokens", tokens, num_drafts + 1)
        accepts = list(answer.lenient_accepts)
        if accepts:
            _require_count("lenient_accepts", accepts, num_drafts)
        return Verdict(tokens, lenient_accepts=accepts, rule=rule, lenience=lenience, dead_end=dead_end, report=report)
    _require_count("tokens", tokens, 1)
    _require_count("outside_tokens", answer.outside_tokens, num_drafts)
    sizes = [len(support) for support in proposal.supports]
    probs = floats_from_bytes(answer.support_probs, "support_probs", sum(sizes))
    masses = floats_from_bytes(answer.outside_masses, "outside_masses", len(sizes), "<f8")
    return Verdict(
        tokens=tokens,
        support_probs=np.split(probs, np.cumsum(sizes)[:-1]),
        outside_masses=masses.tolist(),
        outside_tokens=list(answer.outside_tokens),
        rule=rule,
        lenience=lenience,
        dead_end=dead_end,
        report=report,
    )


def _require_count(name: str, values: Sequence[Any], count: int) -> None:
    # The texts are made only for an error: this runs in every round.
    if len(values) != count:
        raise InvalidArgument.of_value(name, f"{len(values)} values", f"{count} values")


def _candidates(verdict: Verdict, proposal: Proposal, rule: Rule) -> list[list[int]]:
    """Returns the ids whose log-probabilities the target sends (Verdict.logprobs in target.proto)."""
    if rule is Rule.MATCH and verdict.lenient_accepts:
        judged = [list(pair) for pair in zip(verdict.tokens, proposal.tokens, strict=False)]
        return [*judged, verdict.tokens[-1:]]
    if rule is Rule.MATCH or not proposal.tokens:
        return [[token] for token in verdict.tokens]
    supported = zip(proposal.supports, verdict.outside_tokens, strict=True)
    return [*([*support.tolist(), outside] for support, outside in supported), verdict.tokens]


def _unpack_logprobs(message: target_pb2.Logprobs, candidates: list[list[int]], num_top: int) -> list[PositionLogprobs]:
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


# Fields of the model card that determine the output.
IDENTITY = {
    "weights_fingerprint": "weights",
    "tokenizer_fingerprint": "tokenizer",
    "dtype": "dtype",
    "quantization": "quantization",
    "implementation": "implementation of the layers",
    "kv_cache_dtype": "KV cache dtype",
    "device": "device",
    "max_model_len": "maximum length",
    "arithmetic": "arithmetic (kind of processor, or version of its libraries)",
}


def identity_of(card: model_pb2.ModelCard) -> str:
    """Returns a digest of what determines a target's tokens."""
    return hashlib.sha256(repr([getattr(card, field) for field in IDENTITY]).encode()).hexdigest()[:16]


class SameModel:
    """Refuses targets with another model than the first: tokenizer and running generations are that one's."""

    def __init__(self) -> None:
        self._first: model_pb2.ModelCard | None = None

    def check(self, address: str, card: model_pb2.ModelCard) -> None:
        """Raises ConfigError naming the difference."""
        first = self._first = self._first or card
        for field, name in IDENTITY.items():
            before, now = getattr(first, field), getattr(card, field)
            if before != now:
                raise ConfigError(
                    f"the target server at {address} has another {name}: {now!r} in place of {before!r} "
                    f"({card.name!r}, at first {first.name!r}); start the coordinator again to use it"
                )
