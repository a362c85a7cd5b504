from collections.abc import Callable

from coordinator.acceptance import SyntheticAcceptance
from coordinator.context import Context, Emission, Request
from coordinator.stats import GenerationStats, Round
from coordinator.tokenizer import Tokenizer
from paceline.results import Finish, RoundTrace, TracedDraft
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.rpc.generation import encode_piece
from paceline.speculation import Rule


class Choice:
    """One of a request's n generations."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer) -> None:
        self.index = index
        before = [] if request.is_chat else request.prompt
        text = tokenizer.stream(request.sampling.stop, before)
        self.context = Context(request, text, request.answer_reader(index))
        self.stats = GenerationStats()

    def finish(self, synthetic_acceptance: float | None = None) -> Finish:
        return self.stats.finish(self.context, synthetic_acceptance)


def make_responses(
    choice: Choice, emission: Emission, identity: str, synthetic: SyntheticAcceptance | None = None
) -> list[bytes]:
    """Returns a round's message, after those with log-probabilities of a long prompt that do not fit in it."""
    request, index, responses = choice.context.request, choice.index, []
    of_prompt = emission.prompt_logprobs
    while len(of_prompt) > SPLIT_POSITIONS:
        responses.append(encode_piece(request.request_id, index, prompt_logprobs=of_prompt[:SPLIT_POSITIONS]))
        of_prompt = of_prompt[SPLIT_POSITIONS:]
    finish = choice.finish(None if synthetic is None else synthetic.chance) if emission.is_last else None
    responses.append(
        encode_piece(
            request.request_id, index, emission.tokens, emission.origins, emission.pieces, emission.logprobs, of_prompt,
            emission.trace, len(request.prompt), choice.stats.cached_prompt_tokens, finish, emission.tool_calls,
            emission.reasoning, identity if choice.stats.rounds == 0 else "",
        )
    )  # fmt: skip
    return responses


def trace_round(number: int, finished: Round, emission: Emission, bytes_of: Callable[[int], bytes]) -> RoundTrace:
    proposal, verdict = finished.proposal, finished.verdict
    computed_us, queued_us = (
        proposal.report.computed_us + verdict.report.computed_us,
        proposal.report.queued_us + verdict.report.queued_us,
    )
    return RoundTrace(
        round=number,
        drafter=proposal.report.drafters if proposal.tokens else "none",
        reason=proposal.report.reason,
        draft_tokens=proposal.report.num_asked,
        proposed=_trace_drafts(finished, len(emission.tokens), lambda token: bytes_of(token).decode(errors="replace")),
        num_accepted=min(finished.outcome.num_accepted, len(emission.tokens)),
        entropies=list(proposal.report.entropies),
        smoothed_entropies=list(proposal.report.smoothed_entropies),
        allowed_draft_tokens=list(proposal.report.allowed_draft_tokens),
        draft_us=proposal.report.computed_us,
        target_us=verdict.report.computed_us,
        queued_us=queued_us,
        wire_us=max(0, int((finished.propose_s + finished.verify_s) * 1e6) - computed_us - queued_us),
        draft=proposal.report.draft if proposal.tokens else "",
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
