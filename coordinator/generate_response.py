from collections.abc import Callable

from coordinator.acceptance import SyntheticAcceptance
from coordinator.context import Context, Emission
from coordinator.request import Request
from coordinator.stats import GenerationStats, Round
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from paceline.results import Finish, RoundTrace, TracedDraft
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.rpc.generation_messages import encode_piece


class Choice:
    """One of a request's n generations."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer, chats: Chats | None = None) -> None:
        """`chats`: None if all of the answer is text."""
        self.index = index
        before = [] if request.is_chat else request.prompt
        text = tokenizer.stream(request.stop_strings, before)
        reader = None
        if chats is not None and request.is_chat:
            call_ids = f"{request.request_id}/{request.prompt_digest}"
            reader = chats.reader(request.tools, request.opens_reasoning, call_ids, index)
        self.context = Context(request, text, reader)
        self.stats = GenerationStats()

    def finish(self, synthetic_acceptance_rate: float | None = None) -> Finish:
        return self.stats.finish(self.context, synthetic_acceptance_rate)


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
    proposal, verify_result = finished.proposal, finished.verify_result
    compute_us, queued_us = (
        proposal.report.compute_us + verify_result.report.compute_us,
        proposal.report.queued_us + verify_result.report.queued_us,
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
        draft_us=proposal.report.compute_us + verify_result.report.drafting_us,
        target_us=verify_result.report.compute_us,
        queued_us=queued_us,
        rpc_us=max(0, int((finished.propose_s + finished.verify_s) * 1e6) - compute_us - queued_us),
        draft_model=proposal.report.draft_model if proposal.tokens else "",
    )


def _trace_drafts(finished: Round, num_emitted: int, text_of: Callable[[int], str]) -> list[TracedDraft]:
    proposal, verify_result, outcome = finished.proposal, finished.verify_result, finished.outcome
    drafts, num_matched = [], proposal.num_matched(verify_result.rule)
    for index, token in enumerate(proposal.tokens):
        is_decided, is_matched = index < min(num_emitted, finished.num_decided), index < num_matched
        has_ratio = is_decided and not is_matched and bool(outcome.comparisons)
        compared = outcome.comparisons[index - num_matched] if has_ratio else None
        target = verify_result.tokens[index] if is_decided and is_matched else None
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
