"""The likeliest next tokens behind a hypothesis and its drafts, from the target; behind a hypothesis, from the draft."""

import math
from dataclasses import dataclass
from typing import Any

from coordinator.remote.link import Link
from coordinator.remote.sequence import RemoteSequence, with_patience
from paceline.checks import require
from paceline.rpc.messages import draft_mode_to_message, floats_from_bytes, rule_to_message
from paceline.speculation import DraftMode, Rule


@dataclass(frozen=True, slots=True)
class Scored:
    """Next tokens at each position asked about, likeliest first, with log-probabilities; and what they cost."""

    next_tokens: list[list[tuple[int, float]]]
    # Tokens that the server's cache held already.
    cached_tokens: int
    computed_us: int
    queued_us: int


async def score(
    target: Link, sequence: RemoteSequence, tokens: list[int], num_drafts: int, num_next: int, patience_s: float
) -> Scored:
    """The `num_next` likeliest tokens at the last `num_drafts` + 1 positions of `tokens`, each by the tokens up to it.

    Leaves all of `tokens` in the sequence's cache. Raises Unavailable if the target is gone for longer than the patience.
    """
    context, drafts = tokens[: len(tokens) - num_drafts], tokens[len(tokens) - num_drafts :]
    # The newest token must be fed for its logits.
    sequence.truncate(len(context) - 1)

    def fill(command: Any, position: int, tail: list[int]) -> None:
        verify = command.verify
        verify.position = position
        verify.tail_tokens.extend(tail)
        verify.draft_tokens.extend(drafts)
        verify.rule = rule_to_message(Rule.MATCH)
        verify.logprobs = num_next

    answer = await with_patience(target, patience_s, lambda: sequence.feed(context, fill, lambda answer: num_drafts))
    ids, count = list(answer.logprobs.top_token_ids), (num_drafts + 1) * num_next
    require(len(ids) == count, "logprobs.top_token_ids", f"{len(ids)} ids", f"{count} ids")
    pairs = list(zip(ids, floats_from_bytes(answer.logprobs.top, "logprobs.top", count).tolist(), strict=True))
    next_tokens = [pairs[start : start + num_next] for start in range(0, count, num_next)]
    return Scored(next_tokens, answer.cached_tokens, answer.computed_us, answer.queued_us)


async def guess(sequence: RemoteSequence, tokens: list[int], num_next: int) -> Scored:
    """The same behind `tokens` by a draft model, as far as its support goes: what it would draw from at temperature 1.

    Raises PacelineError where the draft server can't.
    """
    sequence.truncate(len(tokens) - 1)

    def fill(command: Any, position: int, tail: list[int]) -> None:
        propose = command.propose
        propose.position = position
        propose.tail_tokens.extend(tail)
        propose.num_draft_tokens = 1
        propose.draft_mode = draft_mode_to_message(DraftMode.SAMPLED)

    answer = await sequence.feed(tokens, fill, lambda answer: answer.num_fed_drafts)
    ids = list(answer.support_token_ids)
    probs = floats_from_bytes(answer.support_probs, "support_probs", len(ids)).tolist()
    likeliest = sorted(zip(probs, ids, strict=True), reverse=True)[:num_next]
    next_tokens = [(token, math.log(prob)) for prob, token in likeliest if prob > 0]
    require(bool(next_tokens), "support_token_ids", "empty", "at least one id")
    return Scored([next_tokens], answer.cached_tokens, answer.computed_us, answer.queued_us)
