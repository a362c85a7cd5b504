"""The Generation service's messages as a client's values."""

import dataclasses
from typing import Any

from paceline.results import (
    Deployment,
    Detokenized,
    Finish,
    Model,
    Piece,
    RoundTrace,
    Speculation,
    Timing,
    TokenizerInfo,
    TokenLogprobs,
    TracedDraft,
)
from paceline.rpc.messages import speculation_from_message
from paceline.speculation import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2

_LETTERS = {
    generation_pb2.ORIGIN_ACCEPTED: "A",
    generation_pb2.ORIGIN_RECOVERED: "R",
    generation_pb2.ORIGIN_BONUS: "B",
    generation_pb2.ORIGIN_TARGET: "T",
}
_REASONS = {generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length"}


def piece_from_message(response: generation_pb2.GenerateResponse) -> Piece:
    return Piece(
        text=response.text,
        token_ids=list(response.token_ids),
        origins="".join(_LETTERS[origin] for origin in response.origins),
        text_lengths=list(response.text_lengths),
        index=response.index,
        logprobs=[_logprobs(each) for each in response.logprobs],
        prompt_logprobs=[_logprobs(each) for each in response.prompt_logprobs],
        trace=_trace(response.trace) if response.HasField("trace") else None,
        prompt_tokens=response.prompt_tokens,
        cached_prompt_tokens=response.cached_prompt_tokens,
        finish=_finish(response.finish) if response.HasField("finish") else None,
    )


def deployment_from_message(response: generation_pb2.DescribeResponse) -> Deployment:
    return Deployment(
        target=_model(response.target),
        draft=_model(response.draft) if response.HasField("draft") else None,
        defaults=SpeculationParams(**speculation_from_message(response.defaults)),
        running=response.running,
        max_running=response.max_running,
        version=response.version,
        tokenizer=TokenizerInfo(**_optional_fields(response.tokenizer, TokenizerInfo)),
    )


def detokenized_from_message(response: generation_pb2.DetokenizeResponse) -> Detokenized:
    return Detokenized(response.text, list(response.pieces), list(response.text_offsets))


def _model(card: model_pb2.ModelCard) -> Model:
    return Model(**{field.name: getattr(card, field.name) for field in dataclasses.fields(Model)})


def _logprobs(message: generation_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, list(message.top_token_ids), list(message.top_logprobs), message.text_offset)


def _trace(message: generation_pb2.RoundTrace) -> RoundTrace:
    # The dataclass has the message's fields, under the same names.
    fields: dict[str, Any] = {field.name: getattr(message, field.name) for field in dataclasses.fields(RoundTrace)}
    lists: dict[str, Any] = {
        name: list(fields[name]) for name in ("entropies", "smoothed_entropies", "allowed_draft_tokens")
    }
    return RoundTrace(**fields | lists | {"proposed": list(map(_draft, message.proposed))})


def _draft(message: generation_pb2.TracedDraft) -> TracedDraft:
    return TracedDraft(message.token_id, message.text, message.accepted, **_optional_fields(message, TracedDraft))


def _optional_fields(message: Any, kind: type) -> dict[str, Any]:
    """The fields of `kind` that may be absent, None where they are."""
    optional = {field.name for field in message.DESCRIPTOR.fields if field.has_presence}
    names = [field.name for field in dataclasses.fields(kind) if field.name in optional]
    return {name: getattr(message, name) if message.HasField(name) else None for name in names}


def _finish(message: generation_pb2.Finish) -> Finish:
    figures, timing = message.speculation, message.timing
    return Finish(
        reason=_REASONS[message.reason],
        prompt_tokens=message.prompt_tokens,
        cached_prompt_tokens=message.cached_prompt_tokens,
        completion_tokens=message.completion_tokens,
        seed=message.seed,
        speculation=Speculation(
            rounds=figures.rounds,
            proposed=figures.proposed,
            accepted=figures.accepted,
            proposed_per_position=list(figures.proposed_per_position),
            accepted_per_position=list(figures.accepted_per_position),
            mean_acceptance_length=figures.mean_acceptance_length,
            lenience=figures.lenience if figures.HasField("lenience") else None,
            synthetic_acceptance=figures.synthetic_acceptance if figures.HasField("synthetic_acceptance") else None,
            rounds_by_accepted=list(figures.rounds_by_accepted),
            prediction_accepted=figures.prediction_accepted,
            prediction_rejected=figures.prediction_rejected,
        ),
        timing=Timing(
            ttft_ms=timing.first_token_us / 1e3,
            total_ms=timing.total_us / 1e3,
            draft_ms=timing.draft_us / 1e3,
            target_ms=timing.target_us / 1e3,
            queued_ms=timing.queued_us / 1e3,
            wire_ms=timing.wire_us / 1e3,
        ),
    )
