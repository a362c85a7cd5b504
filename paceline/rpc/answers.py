"""The Generation service's answers: messages <-> plain values of `paceline.results`.

A dataclass has its message's fields under the same names, except that clients see times in milliseconds.
"""

import dataclasses
from typing import Any

from google.protobuf.message import Message

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

_ORIGINS = {
    "A": generation_pb2.ORIGIN_ACCEPTED,
    "R": generation_pb2.ORIGIN_RECOVERED,
    "B": generation_pb2.ORIGIN_BONUS,
    "T": generation_pb2.ORIGIN_TARGET,
}
_LETTERS = {number: letter for letter, number in _ORIGINS.items()}
_REASONS = {"stop": generation_pb2.FINISH_REASON_STOP, "length": generation_pb2.FINISH_REASON_LENGTH}
_REASON_WORDS = {number: word for word, number in _REASONS.items()}
# Timing's fields, in milliseconds, by the message's, in microseconds.
_TIMES = {
    "first_token_us": "ttft_ms",
    "total_us": "total_ms",
    "draft_us": "draft_ms",
    "target_us": "target_ms",
    "queued_us": "queued_ms",
    "wire_us": "wire_ms",
}


def piece_from_message(response: generation_pb2.GenerateResponse) -> Piece:
    return Piece(
        text=response.text,
        token_ids=list(response.token_ids),
        origins="".join(_LETTERS[origin] for origin in response.origins),
        text_lengths=list(response.text_lengths),
        index=response.index,
        logprobs=[_logprobs_from_message(each) for each in response.logprobs],
        prompt_logprobs=[_logprobs_from_message(each) for each in response.prompt_logprobs],
        trace=_trace_from_message(response.trace) if response.HasField("trace") else None,
        prompt_tokens=response.prompt_tokens,
        cached_prompt_tokens=response.cached_prompt_tokens,
        finish=_finish_from_message(response.finish) if response.HasField("finish") else None,
    )


def piece_to_message(piece: Piece, request_id: str) -> generation_pb2.GenerateResponse:
    # A field that is None stays unset.
    return generation_pb2.GenerateResponse(
        request_id=request_id,
        index=piece.index,
        token_ids=piece.token_ids,
        origins=[_ORIGINS[letter] for letter in piece.origins],
        text=piece.text,
        text_lengths=piece.text_lengths,
        logprobs=map(_logprobs_to_message, piece.logprobs),
        prompt_logprobs=map(_logprobs_to_message, piece.prompt_logprobs),
        trace=generation_pb2.RoundTrace(**dataclasses.asdict(piece.trace)) if piece.trace is not None else None,
        prompt_tokens=piece.prompt_tokens,
        cached_prompt_tokens=piece.cached_prompt_tokens,
        finish=_finish_to_message(piece.finish) if piece.finish is not None else None,
    )


def deployment_from_message(response: generation_pb2.DescribeResponse) -> Deployment:
    return Deployment(
        target=_model(response.target),
        draft=_model(response.draft) if response.HasField("draft") else None,
        defaults=SpeculationParams(**speculation_from_message(response.defaults)),
        running=response.running,
        max_running=response.max_running,
        version=response.version,
        tokenizer=TokenizerInfo(**_fields(response.tokenizer, TokenizerInfo)),
    )


def detokenized_from_message(response: generation_pb2.DetokenizeResponse) -> Detokenized:
    return Detokenized(response.text, list(response.pieces), list(response.text_offsets))


def _model(card: model_pb2.ModelCard) -> Model:
    return Model(**_fields(card, Model))


def _logprobs_from_message(message: generation_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, list(message.top_token_ids), list(message.top_logprobs), message.text_offset)


def _logprobs_to_message(value: TokenLogprobs) -> generation_pb2.TokenLogprobs:
    return generation_pb2.TokenLogprobs(
        logprob=value.logprob,
        top_token_ids=value.top_token_ids,
        top_logprobs=value.top_logprobs,
        text_offset=value.text_offset,
    )


def _trace_from_message(message: generation_pb2.RoundTrace) -> RoundTrace:
    drafts = [TracedDraft(**_fields(each, TracedDraft)) for each in message.proposed]
    return RoundTrace(**_fields(message, RoundTrace) | {"proposed": drafts})


def _finish_from_message(message: generation_pb2.Finish) -> Finish:
    fields = _fields(message, Finish) | {
        "reason": _REASON_WORDS[message.reason],
        "speculation": Speculation(**_fields(message.speculation, Speculation)),
        "timing": Timing(**{name: getattr(message.timing, us) / 1e3 for us, name in _TIMES.items()}),
    }
    return Finish(**fields)


def _finish_to_message(finish: Finish) -> generation_pb2.Finish:
    # Not `asdict`: one level is wanted.
    fields = {field.name: getattr(finish, field.name) for field in dataclasses.fields(finish)} | {
        "reason": _REASONS[finish.reason],
        "speculation": generation_pb2.SpeculationFigures(**dataclasses.asdict(finish.speculation)),
        "timing": generation_pb2.Timing(
            **{us: round(getattr(finish.timing, name) * 1e3) for us, name in _TIMES.items()}
        ),
    }
    return generation_pb2.Finish(**fields)


def _fields(message: Message, kind: type) -> dict[str, Any]:
    """The values of the dataclass `kind` that the message has under the same names; None for a field that is not set."""
    names = {field.name for field in dataclasses.fields(kind)}
    values: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if field.name in names:
            value = getattr(message, field.name)
            if field.is_repeated:
                value = list(value)
            elif field.has_presence and not message.HasField(field.name):
                value = None
            values[field.name] = value
    return values
