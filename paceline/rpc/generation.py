"""The Generation service's messages, as a client makes and reads them."""

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
    # The dataclass has the message's field names.
    fields: dict[str, Any] = {field.name: getattr(message, field.name) for field in dataclasses.fields(RoundTrace)}
    lists: dict[str, Any] = {
        name: list(fields[name]) for name in ("entropies", "smoothed_entropies", "allowed_draft_tokens")
    }
    return RoundTrace(**fields | lists | {"proposed": list(map(_draft, message.proposed))})


def _draft(message: generation_pb2.TracedDraft) -> TracedDraft:
    return TracedDraft(message.token_id, message.text, message.accepted, **_optional_fields(message, TracedDraft))


def _optional_fields(message: Message, kind: type) -> dict[str, Any]:
    """Returns the optional fields of `kind`, None for absent ones."""
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
