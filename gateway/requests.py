"""A body becomes a request: prompts, sampling, speculation, and how the answer is wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gateway.bodies import flag, get
from gateway.errors import of_paceline, refuse
from gateway.fields import (
    CHAT,
    CHAT_NAMES,
    DRAFT_LENGTH,
    PREDICTION,
    SAMPLING,
    SPECULATION,
    STREAM_OPTIONS,
    TEXT,
    check_fields,
    check_keys,
    whole_numbers,
)
from gateway.prompts import messages_of, prompts_of, text_of
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.results import Deployment
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, DraftMode, Rule, SpeculationParams, parse_draft_length

DEFAULT_TEXT_TOKENS = 16


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """What a client asked for. Each prompt gives `sampling.n` choices."""

    prompts: list[Prompt]
    sampling: SamplingParams
    speculation: SpeculationParams | None
    prediction: str | None
    # Prompts are texts as they are, without a chat template.
    is_raw: bool
    is_traced: bool
    is_stream: bool
    includes_usage: bool
    has_usage_in_every_chunk: bool
    echo: bool
    request_id: str
    cache_salt: str
    template_options: dict[str, Any] | None = None
    parses_special_tokens: bool = False


def parse_chat(body: Mapping[str, Any], deployment: Deployment) -> HttpRequest:
    """Of /v1/chat/completions. Raises HttpError and InvalidArgument, both naming the field."""
    check_fields(body, CHAT)
    body = whole_numbers(body)
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    most = get(body, name, int, "a whole number")
    if most is not None and most < 1:
        raise refuse(name, f"{name} is {most}; it must be at least 1")
    top = None
    if flag(body, "logprobs"):
        top = get(body, "top_logprobs", int, "a whole number in [0, 20]", 0)
    elif body.get("top_logprobs"):
        raise refuse("top_logprobs", "top_logprobs needs logprobs to be true")
    options = get(body, "chat_template_kwargs", dict, "an object")
    if not flag(body, "add_generation_prompt", True):
        raise refuse("add_generation_prompt", "add_generation_prompt is false; it must be true")
    if most is None:
        most = deployment.target.max_model_len
    try:
        sampling = _sampling(body, max_tokens=most, logprobs=top)
    except InvalidArgument as error:
        raise of_paceline(error, {**CHAT_NAMES, "max_tokens": name}) from None
    parses = flag(body, "parse_special_tokens")
    messages: list[Prompt] = [messages_of(body)]
    return _request(body, deployment, messages, sampling, template_options=options, parses_special_tokens=parses)


def parse_text(body: Mapping[str, Any], deployment: Deployment) -> HttpRequest:
    """Of /v1/completions. Raises HttpError and InvalidArgument, both naming the field."""
    check_fields(body, TEXT)
    body = whole_numbers(body)
    most = get(body, "max_tokens", int, "a whole number", DEFAULT_TEXT_TOKENS)
    echo = flag(body, "echo")
    top = get(body, "logprobs", int, "a whole number in [0, 20]")
    if most == 0 and not echo:
        raise refuse("max_tokens", "max_tokens is 0; it must be at least 1, or 0 with echo")
    sampling = _sampling(body, max_tokens=most, logprobs=top)
    if echo and top is not None:
        sampling = replace(sampling, prompt_logprobs=top)
    return _request(body, deployment, prompts_of(body), sampling, echo=echo, is_raw=True)


def _request(
    body: Mapping[str, Any], deployment: Deployment, prompts: list[Prompt], sampling: SamplingParams, **more: Any
) -> HttpRequest:
    options = get(body, "stream_options", dict, "an object", {})
    check_keys(options, STREAM_OPTIONS, "stream_options")
    is_stream = flag(body, "stream")
    if options and not is_stream:
        raise refuse("stream_options", "stream_options needs stream to be true")
    if flag(body, "trace") and not is_stream:
        raise refuse("trace", "trace is true; it must be false without stream: a whole answer has no rounds")
    speculation = _speculation(body, deployment.defaults, sampling)
    if speculation is not None:
        speculation.check(sampling)
    return HttpRequest(
        **{"is_raw": False, "echo": False, **more},
        prompts=prompts,
        sampling=sampling,
        speculation=speculation,
        prediction=_prediction(body),
        is_traced=flag(body, "trace"),
        is_stream=is_stream,
        includes_usage=flag(options, "include_usage", where="stream_options."),
        has_usage_in_every_chunk=flag(options, "continuous_usage_stats", where="stream_options."),
        request_id=get(body, "request_id", str, "a text", ""),
        cache_salt=get(body, "cache_salt", str, "a text", ""),
    )


def _sampling(body: Mapping[str, Any], **more: Any) -> SamplingParams:
    given = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    given.setdefault("temperature", 1.0)
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if isinstance(given.get("seed"), int) and -(2**63) <= given["seed"] < 0:
        given["seed"] += 2**64
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {_token_id(name): bias for name, bias in given["logit_bias"].items()}
    for name in ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    num_samples = given.get("n", 1)
    if get(body, "best_of", int, "the same as n", num_samples) != num_samples:
        raise refuse("best_of", f"best_of is {body['best_of']}; it must be the same as n, which is {num_samples!r:.80}")
    return SamplingParams(**given, **more)


def _token_id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 11):
        raise refuse("logit_bias", f"logit_bias has the key {name[:80]!r}; keys must be token ids")
    return int(name)


def _speculation(
    body: Mapping[str, Any], defaults: SpeculationParams, sampling: SamplingParams
) -> SpeculationParams | None:
    """The coordinator's defaults, with what the request says in their place; None: nothing was said."""
    asked = body.get("speculation")
    if asked is None:
        return None
    if isinstance(asked, bool):
        return defaults.overruled_by({"enabled": asked}, sampling)
    asked = whole_numbers(get(body, "speculation", dict, "an object, true or false"))
    check_keys(asked, SPECULATION, "speculation")
    given: dict[str, Any] = {
        name: asked[name] for name in ("lenience", "draft_temperature") if asked.get(name) is not None
    }
    given["enabled"] = flag(asked, "enabled", True, "speculation.")
    if asked.get("drafter") is not None:
        given["drafter"] = _one_of(asked, "drafter", Drafter)
    length = {name: asked[name] for name in DRAFT_LENGTH if asked.get(name) is not None}
    if length:
        text = str(length.pop("draft_tokens")) if "draft_tokens" in length else None
        given["num_draft_tokens"] = parse_draft_length(text, **length)
    if asked.get("rule") is not None:
        given["rule"] = _one_of(asked, "rule", Rule)
    if flag(asked, "coupled", where="speculation."):
        if given.get("rule") is Rule.REJECTION:
            raise refuse("speculation.coupled", "speculation.coupled is true; it must be false under rejection")
        given |= {"rule": Rule.MATCH, "draft_mode": DraftMode.COUPLED}
    return defaults.overruled_by(given, sampling)


def _one_of(asked: Mapping[str, Any], name: str, kind: Any) -> Any:
    names = [each.value for each in kind]
    if asked[name] not in names:
        raise refuse(
            f"speculation.{name}", f"speculation.{name} is {asked[name]!r:.80}; it must be one of {', '.join(names)}"
        )
    return kind(asked[name])


def _prediction(body: Mapping[str, Any]) -> str | None:
    """OpenAI's form, {"type": "content", "content": text or parts}, or the text itself."""
    asked = body.get("prediction")
    if isinstance(asked, dict):
        check_keys(asked, PREDICTION, "prediction")
        if asked.get("type", "content") != "content":
            raise refuse("prediction.type", f"prediction.type is {asked['type']!r:.80}; it must be 'content'")
        asked = asked.get("content", "")
    return None if asked is None else text_of(asked, "prediction.content")
