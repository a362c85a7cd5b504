"""The Generation service's messages: a client's requests, and responses <-> plain values of `paceline.results`.

A dataclass has its message's fields under the same names, except that clients see times in milliseconds.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypedDict

import numpy as np
from google.protobuf.message import Message

from paceline.checks import is_token_id, require
from paceline.errors import InvalidArgument
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
from paceline.rpc.channel import MAX_MESSAGE_BYTES
from paceline.rpc.messages import sampling_to_message, speculation_from_message, speculation_to_message
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2

Prompt = str | list[dict[str, str]] | list[int]
TOKEN_IDS = f"a list of token ids, whole numbers in [0, {2**31})"
PROMPTS = f'a text, a list of messages {{"role": text, "content": text}}, or {TOKEN_IDS}'


class RequestOptions(TypedDict, total=False):
    """Optional parts of a request besides its prompt, sampling and speculation.

    prediction: the expected output, as text or token ids; a source of drafts. It changes the speed, never the output.
    trace: include a trace of its round in each piece.
    request_id: for logs; at most 256 characters. Empty: the coordinator makes one.
    cache_salt: only requests with the same salt share cached prompts and recent responses, so that others can't infer
        them from response times; at most 256 characters. Empty: shared with all requests without a salt.
    template_options: arguments for the model's chat template, such as {"enable_thinking": False}.
    parse_special_tokens: parse special tokens spelled in messages or template_options. Raw text is always parsed.
    """

    prediction: str | list[int] | None
    trace: bool
    request_id: str
    cache_salt: str
    template_options: dict[str, Any] | None
    parse_special_tokens: bool


def make_request(
    prompt: Prompt,
    sampling: SamplingParams | None,
    speculation: SpeculationParams | None,
    raw: bool,
    *,
    prediction: str | list[int] | None = None,
    trace: bool = False,
    request_id: str = "",
    cache_salt: str = "",
    template_options: dict[str, Any] | None = None,
    parse_special_tokens: bool = False,
) -> generation_pb2.GenerateRequest:
    """Makes the request message; None leaves a part to the coordinator. Raises InvalidArgument."""
    request = generation_pb2.GenerateRequest(
        request_id=_encodable("request_id", request_id),
        trace=trace,
        cache_salt=_encodable("cache_salt", cache_salt),
    )
    if sampling is not None:
        request.sampling.CopyFrom(sampling_to_message(sampling))
    if speculation is not None:
        request.speculation.CopyFrom(speculation_to_message(speculation))
    _fill_prompt(request, prompt, raw, parse_special_tokens)
    if isinstance(prediction, str):
        request.prediction_text = _encodable("prediction", prediction)
    elif prediction is not None:
        request.prediction_token_ids.ids.extend(_token_ids("prediction", prediction))
    _check_size("prediction", request)
    if template_options is not None:
        is_chat = request.WhichOneof("prompt") == "chat"
        require(is_chat, "template_options", template_options, "None for a prompt without a chat template")
        request.chat.template_options = _as_json(template_options)
        _check_size("template_options", request)
    return request


def make_tokenize_request(
    prompt: Prompt,
    raw: bool,
    add_special_tokens: bool,
    add_generation_prompt: bool,
    parse_special_tokens: bool = False,
) -> generation_pb2.TokenizeRequest:
    """Raises InvalidArgument."""
    request = generation_pb2.TokenizeRequest(
        add_special_tokens=add_special_tokens, add_generation_prompt=add_generation_prompt
    )
    _fill_prompt(request, prompt, raw, parse_special_tokens)
    return request


def make_detokenize_request(ids: list[int], skip_special_tokens: bool) -> generation_pb2.DetokenizeRequest:
    """Raises InvalidArgument."""
    request = generation_pb2.DetokenizeRequest(
        token_ids=_token_ids("token_ids", ids), skip_special_tokens=skip_special_tokens
    )
    _check_size("token_ids", request)
    return request


def _fill_prompt(
    request: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest,
    prompt: Prompt,
    raw: bool,
    parse_special_tokens: bool,
) -> None:
    """Fills one of the fields `text`, `chat` and `token_ids`. A list's first element decides which."""
    if isinstance(prompt, str) and raw:
        request.text = _encodable("prompt", prompt)
    elif isinstance(prompt, str):
        request.chat.messages.add(role="user", content=_encodable("prompt", prompt))
    elif _is_list(prompt) and len(prompt) > 0 and isinstance(prompt[0], Mapping):
        for index, message in enumerate(prompt):
            require(isinstance(message, Mapping), f"prompt[{index}]", message, "a message, as prompt[0] is")
            texts = {name: _encodable(f"prompt[{index}].{name}", message.get(name)) for name in ("role", "content")}
            request.chat.messages.add(**texts)
    else:
        is_ids = _is_list(prompt) and (len(prompt) == 0 or isinstance(prompt[0], Integral))
        require(is_ids, "prompt", prompt, PROMPTS)
        request.token_ids.SetInParent()
        request.token_ids.ids.extend(_token_ids("prompt", prompt))
    if request.WhichOneof("prompt") == "chat":
        request.chat.parse_special_tokens = parse_special_tokens
    else:
        allowed = "False for a prompt without a chat template"
        require(not parse_special_tokens, "parse_special_tokens", parse_special_tokens, allowed)
    _check_size("prompt", request)


def _check_size(name: str, request: Message) -> None:
    """Raises InvalidArgument if the request, filled up to the field `name`, exceeds the message limit."""
    size = request.ByteSize()
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            name, f"is too long: with it the request has {size} bytes; a message may have {MAX_MESSAGE_BYTES}"
        )


def _encodable(name: str, text: Any) -> str:
    """Raises InvalidArgument unless `text` is a string that UTF-8 can encode."""
    require(isinstance(text, str), name, text, "a text in UTF-8")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument.of_value(name, text, "a text in UTF-8") from None
    return text


def _is_list(value: object) -> bool:
    """Whether it is a list, tuple or one-dimensional array; bytes are not."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes | bytearray | memoryview)


def _token_ids(name: str, ids: Any) -> list[int]:
    """Raises InvalidArgument for values that are not token ids."""
    require(_is_list(ids), name, ids, TOKEN_IDS)
    for value in ids:
        if not is_token_id(value):
            raise InvalidArgument.of_value(name, value, TOKEN_IDS)
    return [int(value) for value in ids]


def _as_json(options: dict[str, Any]) -> str:
    require(isinstance(options, dict), "template_options", options, "a dict that JSON can hold")
    try:
        return _encodable("template_options", json.dumps(options, ensure_ascii=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgument("template_options", f"can't be written as JSON: {error}") from None


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
        max_num_seqs=response.max_num_seqs,
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
    """Returns the message's values for the dataclass `kind`, by name; None for fields that are not set."""
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
