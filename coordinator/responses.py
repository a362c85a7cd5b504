"""What a generation's rounds look like to a client: messages of the Generation service, as the bytes that are sent."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from coordinator.acceptance import Origin
from coordinator.context import Context, Emission, FinishReason, Request
from coordinator.logprobs import TokenLogprobs
from coordinator.stats import GenerationStats
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from paceline.rpc.channel import SPLIT_POSITIONS
from paceline.v1 import generation_pb2

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
