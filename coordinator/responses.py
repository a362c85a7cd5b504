"""A generation's rounds as messages of the Generation service, as the bytes that are sent, and their traces."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

from coordinator.acceptance import Origin
from coordinator.context import Context, Emission, FinishReason, Request
from coordinator.stats import GenerationStats, Round
from coordinator.synthetic import SyntheticAcceptance
from coordinator.tokenizer import Tokenizer
from paceline.results import RoundTrace, TokenLogprobs, TracedDraft
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.speculation import Rule
from paceline.v1 import generation_pb2


def trace_round(number: int, finished: Round, emission: Emission, bytes_of: Callable[[int], bytes]) -> RoundTrace:
    """`number`: 0 for the prompt's round; `bytes_of`: what a token stands for."""
    proposal, verdict = finished.proposal, finished.verdict
    computed_us, queued_us = (
        proposal.report.computed_us + verdict.report.computed_us,
        proposal.report.queued_us + verdict.report.queued_us,
    )
    return RoundTrace(
        round=number,
        drafter=proposal.report.drafter.value if proposal.tokens else "none",
        reason=proposal.report.reason,
        draft_tokens=proposal.report.num_asked,
        proposed=_trace_drafts(finished, len(emission.tokens), lambda token: bytes_of(token).decode(errors="replace")),
        num_accepted=min(finished.outcome.num_accepted, len(emission.tokens)),
        entropies=proposal.report.entropies,
        smoothed_entropies=proposal.report.smoothed_entropies,
        allowed_draft_tokens=proposal.report.allowed_draft_tokens,
        draft_us=proposal.report.computed_us,
        target_us=verdict.report.computed_us,
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


ORIGINS = {
    Origin.ACCEPTED: generation_pb2.ORIGIN_ACCEPTED,
    Origin.RECOVERED: generation_pb2.ORIGIN_RECOVERED,
    Origin.BONUS: generation_pb2.ORIGIN_BONUS,
    Origin.TARGET: generation_pb2.ORIGIN_TARGET,
}
FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


class Choice:
    """One of a request's n generations."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer) -> None:
        self.index = index
        behind = [] if request.is_chat else request.prompt
        self.context = Context(request, tokenizer.stream(request.sampling.stop, behind))
        self.stats = GenerationStats()


def make_responses(choice: Choice, emission: Emission, synthetic: SyntheticAcceptance | None = None) -> Iterator[bytes]:
    """A round's message, behind others with what it can't hold of a long prompt's log-probabilities.

    The last one tells what speculation did. `synthetic`: what decided, if it was not the rule.
    """
    head: dict[str, Any] = {"request_id": choice.context.request.request_id, "index": choice.index}
    of_prompt, first = emission.prompt_logprobs, 0
    while len(of_prompt) - first > SPLIT_POSITIONS:
        part = of_prompt[first : first + SPLIT_POSITIONS]
        yield generation_pb2.GenerateResponse(**head, prompt_logprobs=map(_logprobs, part)).SerializeToString()
        first += SPLIT_POSITIONS
    response = generation_pb2.GenerateResponse(
        **head,
        token_ids=emission.tokens,
        origins=[ORIGINS[origin] for origin in emission.origins],
        text="".join(emission.pieces),
        text_lengths=[len(piece) for piece in emission.pieces],
        logprobs=map(_logprobs, emission.logprobs, emission.text_offsets),
        prompt_logprobs=[_logprobs(each) for each in of_prompt[first:]],
        prompt_tokens=len(choice.context.request.prompt),
        cached_prompt_tokens=choice.stats.cached_prompt_tokens,
    )
    if emission.trace is not None:
        # The message has the dataclass's fields, under the same names; one that is None stays unset.
        response.trace.CopyFrom(generation_pb2.RoundTrace(**asdict(emission.trace)))
    if emission.is_last:
        response.finish.CopyFrom(_finish(choice.context, choice.stats, synthetic))
    yield response.SerializeToString()


def _logprobs(of_token: TokenLogprobs, text_offset: int = 0) -> Any:
    return generation_pb2.TokenLogprobs(
        logprob=of_token.logprob,
        top_token_ids=of_token.top_token_ids,
        top_logprobs=of_token.top_logprobs,
        text_offset=text_offset,
    )


def _finish(generation: Context, stats: GenerationStats, synthetic: SyntheticAcceptance | None) -> Any:
    assert generation.finish_reason is not None
    lenience = generation.request.speculation.lenience
    return generation_pb2.Finish(
        reason=FINISH_REASONS[generation.finish_reason],
        prompt_tokens=len(generation.request.prompt),
        cached_prompt_tokens=stats.cached_prompt_tokens,
        completion_tokens=generation.num_generated,
        seed=generation.request.seed,
        speculation=generation_pb2.SpeculationFigures(
            rounds=stats.rounds,
            proposed=stats.proposed,
            accepted=stats.accepted,
            proposed_per_position=stats.proposed_per_position,
            accepted_per_position=stats.accepted_per_position,
            mean_acceptance_length=stats.mean_acceptance_length,
            lenience=lenience if lenience < 1 else None,
            synthetic_acceptance=None if synthetic is None else synthetic.chance,
            rounds_by_accepted=stats.rounds_by_accepted,
            prediction_accepted=stats.prediction_accepted,
            prediction_rejected=stats.prediction_rejected,
        ),
        timing=generation_pb2.Timing(
            first_token_us=stats.first_token_us,
            total_us=stats.total_us,
            draft_us=stats.draft_us,
            target_us=stats.target_us,
            queued_us=stats.queued_us,
            wire_us=stats.wire_us,
        ),
    )
