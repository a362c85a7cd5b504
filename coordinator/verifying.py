"""Verdicts from the target server, waited for with patience: without the target there is no output."""

from typing import Any

import numpy as np

from coordinator.acceptance import Proposal, Verdict
from coordinator.context import Context, Request
from coordinator.links import Link
from coordinator.remote import RemoteSequence, with_patience
from paceline.rpc.messages import floats_from_bytes, rule_to_message
from paceline.sampling import Rule


class RemoteTarget:
    """One generation's sequence on the target server."""

    def __init__(self, link: Link, request: Request, patience_s: float) -> None:
        self._link = link
        self._sequence = RemoteSequence(link, request)
        self._rule = request.speculation.resolved_rule(request.sampling)
        self._patience_s = patience_s

    async def verify(self, context: Context, proposal: Proposal) -> Verdict:
        """The target's say on `proposal`. Raises Unavailable if the target is gone for longer than the patience."""

        def fill(command: Any, position: int, tail: list[int]) -> None:
            verify = command.verify
            verify.position = position
            verify.tail_tokens.extend(tail)
            verify.draft_tokens.extend(proposal.tokens)
            verify.rule = rule_to_message(self._rule)
            if self._rule is Rule.REJECTION and proposal.tokens:
                verify.support_token_ids.extend(np.concatenate(proposal.supports).tolist())
                verify.support_sizes.extend(len(support) for support in proposal.supports)

        answer = await with_patience(
            self._link, self._patience_s, lambda: self._sequence.feed(context.tokens, len(proposal), fill)
        )
        return _verdict(answer, proposal, self._rule)

    def truncate(self, length: int) -> None:
        self._sequence.truncate(length)

    def release(self) -> None:
        self._sequence.release()


def _verdict(answer: Any, proposal: Proposal, rule: Rule) -> Verdict:
    """Raises InvalidArgument if the message's parts do not fit together."""
    tokens = list(answer.tokens)
    if rule is Rule.MATCH or not proposal.tokens:
        return Verdict(tokens, computed_us=answer.computed_us, queued_us=answer.queued_us)
    sizes = [len(support) for support in proposal.supports]
    probs = floats_from_bytes(answer.support_probs, "support_probs", sum(sizes))
    masses = floats_from_bytes(answer.outside_masses, "outside_masses", len(sizes), "<f8")
    return Verdict(
        tokens=tokens,
        support_probs=np.split(probs, np.cumsum(sizes)[:-1]),
        outside_masses=masses.tolist(),
        outside_tokens=list(answer.outside_tokens),
        computed_us=answer.computed_us,
        queued_us=answer.queued_us,
    )
