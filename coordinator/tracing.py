"""The trace of a round, made from what the loop has kept anyway."""

from collections.abc import Callable

from coordinator.context import Emission
from coordinator.round import Round
from paceline.results import RoundTrace, TracedDraft
from paceline.speculation import Rule


def trace_round(number: int, finished: Round, emission: Emission, bytes_of: Callable[[int], bytes]) -> RoundTrace:
    """`number`: 0 for the prompt's round; `bytes_of`: what a token stands for."""
    proposal, verdict = finished.proposal, finished.verdict
    computed_us, queued_us = proposal.computed_us + verdict.computed_us, proposal.queued_us + verdict.queued_us
    return RoundTrace(
        round=number,
        drafter=proposal.drafter.value if proposal.tokens else "none",
        reason=proposal.reason,
        draft_tokens=proposal.num_asked,
        proposed=_trace_drafts(finished, len(emission.tokens), lambda token: bytes_of(token).decode(errors="replace")),
        num_accepted=min(finished.outcome.num_accepted, len(emission.tokens)),
        entropies=proposal.entropies,
        smoothed_entropies=proposal.smoothed_entropies,
        allowed_draft_tokens=proposal.allowed_draft_tokens,
        draft_us=proposal.computed_us,
        target_us=verdict.computed_us,
        queued_us=queued_us,
        wire_us=max(0, int((finished.propose_s + finished.verify_s) * 1e6) - computed_us - queued_us),
    )


def _trace_drafts(finished: Round, num_emitted: int, text_of: Callable[[int], str]) -> list[TracedDraft]:
    proposal, verdict, outcome = finished.proposal, finished.verdict, finished.outcome
    drafts = []
    for index, token in enumerate(proposal.tokens):
        is_decided = index < min(num_emitted, finished.num_decided)
        compared = outcome.comparisons[index] if is_decided and outcome.comparisons else None
        target = verdict.tokens[index] if is_decided and verdict.rule is Rule.MATCH else None
        drafts.append(
            TracedDraft(
                token_id=token,
                text=text_of(token),
                accepted=is_decided and index < outcome.num_accepted,
                q=compared.q if compared else None,
                p=compared.p if compared else None,
                r=compared.r if compared else None,
                target_id=target,
                target_text=None if target is None else text_of(target),
            )
        )
    return drafts
