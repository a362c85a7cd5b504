"""Parses request fields that are common to all dialects."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

from gateway.errors import NO_RENAMES, FieldNames, bad_request, bad_value
from gateway.fields import (
    DRAFT_LENGTH,
    PART,
    PART_IGNORED,
    PREDICTION,
    SAMPLING,
    SPECULATION,
    STREAM_OPTIONS,
    check_keys,
    check_message,
    flag,
    get,
    whole_numbers,
)
from gateway.formats import NO_FORMAT, NamedFormat
from gateway.tools import NO_TOOLS, OfferedTools, parse_calls
from paceline.client import Prompt
from paceline.formats import OutputFormat
from paceline.results import Deployment
from paceline.sampling import SamplingParams
from paceline.speculation import Drafter, Rule, SpeculationParams, parse_draft_length

MAX_PROMPTS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")
# Of an assistant's message, as vLLM and others call it.
REASONING = ("reasoning", "reasoning_content")
EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
E = TypeVar("E", bound=Enum)


@dataclass(frozen=True, slots=True)
class Serving:
    """What requests are parsed for: the deployment, and the gateway's defaults of fields that they leave out."""

    deployment: Deployment
    sampling_defaults: Mapping[str, Any]
    tool_choice_default: str


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """Each prompt gives `sampling.n` choices."""

    prompts: Sequence[Prompt]
    sampling: SamplingParams
    speculation: SpeculationParams | None
    prediction: str | None
    is_traced: bool
    is_stream: bool
    includes_usage: bool
    has_usage_in_every_chunk: bool
    request_id: str
    cache_salt: str
    format: OutputFormat | None
    # The client's names of fields, where they depend on the request.
    names: FieldNames
    # Without a chat template.
    is_raw: bool = False
    echo: bool = False
    template_options: dict[str, Any] | None = None
    tools: OfferedTools = NO_TOOLS
    parses_special_tokens: bool = False
    # Requests of the same session go to the same coordinator.
    session: str = ""
    # Fields that the response repeats.
    repeated: Mapping[str, Any] = field(default_factory=dict)


def parse_request(
    body: Mapping[str, Any], serving: Serving, prompts: Sequence[Prompt], sampling: SamplingParams,
    format: NamedFormat = NO_FORMAT, tools: OfferedTools = NO_TOOLS, names: FieldNames = NO_RENAMES, **more: Any,
) -> HttpRequest:  # fmt: skip
    """`names`: the client's of other fields. `more`: fields of HttpRequest. Raises Fault and InvalidArgument."""
    options = get(body, "stream_options", dict, "an object", {})
    check_keys(options, STREAM_OPTIONS, "stream_options")
    is_stream = flag(body, "stream")
    if options and not is_stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    if flag(body, "trace") and not is_stream:
        raise bad_request("trace", "trace needs stream to be true: only a stream returns rounds")
    speculation = _parse_speculation(body, serving.deployment.defaults, sampling)
    if speculation is not None:
        speculation.check(sampling)
    return HttpRequest(
        prompts=prompts,
        sampling=sampling,
        speculation=speculation,
        prediction=_parse_prediction(body),
        is_traced=flag(body, "trace"),
        is_stream=is_stream,
        includes_usage=flag(options, "include_usage", prefix="stream_options."),
        has_usage_in_every_chunk=flag(options, "continuous_usage_stats", prefix="stream_options."),
        request_id=get(body, "request_id", str, "a string", ""),
        cache_salt=get(body, "cache_salt", str, "a string", ""),
        format=format.format,
        names={**names, **format.names, **tools.names},
        tools=tools,
        **more,
    )


def parse_sampling(body: Mapping[str, Any], defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """`more`: other parameters. Raises Fault and InvalidArgument."""
    given = {"temperature": 1.0, **defaults}
    given |= {name: body[name] for name in SAMPLING if body.get(name) is not None}
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if isinstance(given.get("seed"), int) and -(2**63) <= given["seed"] < 0:
        given["seed"] += 2**64
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {_parse_token_id(name): bias for name, bias in given["logit_bias"].items()}
    for name in ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids"):
        if isinstance(given.get(name), list):
            given[name] = tuple(given[name])
    num_samples = given.get("n", 1)
    if get(body, "best_of", int, "the same as n", num_samples) != num_samples:
        raise bad_request(
            "best_of", f"best_of is {body['best_of']}; it must be the same as n, which is {num_samples!r:.80}"
        )
    return SamplingParams(**given, **more)


def _parse_token_id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 11):
        raise bad_request("logit_bias", f"logit_bias has the key {name[:80]!r}; keys must be token ids")
    return int(name)


def _parse_speculation(
    body: Mapping[str, Any], defaults: SpeculationParams, sampling: SamplingParams
) -> SpeculationParams | None:
    asked = body.get("speculation")
    if asked is None:
        return None
    if isinstance(asked, bool):
        return defaults.overruled_by({"enabled": asked}, sampling)
    asked = whole_numbers(get(body, "speculation", dict, "an object, true or false"))
    check_keys(asked, SPECULATION, "speculation")
    given: dict[str, Any] = {
        name: asked[name] for name in ("lenience", "draft_temperature", "draft") if asked.get(name) is not None
    }
    given["enabled"] = flag(asked, "enabled", True, "speculation.")
    if asked.get("drafter") is not None:
        given["drafter"] = _parse_enum(asked, "drafter", Drafter)
    length = {name: asked[name] for name in DRAFT_LENGTH if asked.get(name) is not None}
    if length:
        text = str(length.pop("num_speculative_tokens")) if "num_speculative_tokens" in length else None
        given["num_speculative_tokens"] = parse_draft_length(text, **length)
    if asked.get("rule") is not None:
        given["rule"] = _parse_enum(asked, "rule", Rule)
    return defaults.overruled_by(given, sampling)


def _parse_enum(asked: Mapping[str, Any], name: str, kind: type[E]) -> E:
    names = [each.value for each in kind]
    if asked[name] not in names:
        allowed = ", ".join(names)
        raise bad_request(
            f"speculation.{name}", f"speculation.{name} is {asked[name]!r:.80}; it must be one of {allowed}"
        )
    return kind(asked[name])


def _parse_prediction(body: Mapping[str, Any]) -> str | None:
    """Accepts OpenAI's object or the text itself."""
    asked = body.get("prediction")
    if isinstance(asked, dict):
        check_keys(asked, PREDICTION, "prediction")
        if asked.get("type", "content") != "content":
            raise bad_request("prediction.type", f"prediction.type is {asked['type']!r:.80}; it must be 'content'")
        asked = asked.get("content", "")
    return None if asked is None else parse_text_parts(asked, "prediction.content")


def parse_template_options(body: Mapping[str, Any], chat_template: str | None) -> dict[str, Any] | None:
    """Returns the template's arguments, with `reasoning_effort` where the template can say it. Raises Fault."""
    options: dict[str, Any] | None = get(body, "chat_template_kwargs", dict, "an object")
    effort = body.get("reasoning_effort")
    if effort is None:
        return options
    if effort not in EFFORTS:
        raise bad_value("reasoning_effort", effort, f"one of {', '.join(EFFORTS)}")
    if "reasoning_effort" in (chat_template or ""):
        return {"reasoning_effort": effort, **(options or {})}
    if effort == "none" and "enable_thinking" in (chat_template or ""):
        return {"enable_thinking": False, **(options or {})}
    return options


def hinted_options(body: Mapping[str, Any], effort: Any, serving: Serving) -> dict[str, Any] | None:
    """As `parse_template_options`; another effort than EFFORTS is ignored, as a hint that the template can't take."""
    hinted = {**body, "reasoning_effort": effort if effort in EFFORTS else None}
    return parse_template_options(hinted, serving.deployment.tokenizer.chat_template)


def parse_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Raises Fault."""
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages", "messages must be a list with at least one message")
    return [_parse_message(each, f"messages[{index}]") for index, each in enumerate(messages)]


def _parse_message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_request(name, f"{name} must be an object with role and content")
    check_message(message, name)
    role = message.get("role")
    if role not in ROLES:
        raise bad_request(f"{name}.role", f"{name}.role is {role!r:.80}; it must be one of {', '.join(ROLES)}")
    content = message.get("content")
    is_silent = content is None and role == "assistant"
    parsed: dict[str, Any] = {
        "role": role,
        "content": "" if is_silent else parse_text_parts(content, f"{name}.content"),
    }
    if message.get("tool_calls") is not None:
        parsed["tool_calls"] = parse_calls(message["tool_calls"], f"{name}.tool_calls")
    for key in (*REASONING, *(("tool_call_id", "name") if role == "tool" else ())):
        if message.get(key) is not None:
            if not isinstance(message[key], str):
                raise bad_value(f"{name}.{key}", message[key], "a string")
            parsed["reasoning" if key in REASONING else key] = message[key]
    return parsed


def parse_text_parts(content: Any, name: str, types: Collection[str] = ("text",)) -> str:
    """Joins without separators: clients may split text anywhere. `types`: of text parts. Raises Fault."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(name, f"{name} is {content!r:.80}; it must be a string or a list of text parts")
    return "".join(parse_text_part(part, f"{name}[{index}]", types) for index, part in enumerate(content))


def parse_text_part(part: Any, name: str, types: Collection[str] = ("text",)) -> str:
    """Raises Fault."""
    is_text = isinstance(part, dict) and part.get("type") in types
    if is_text:
        check_keys(part, PART, name, PART_IGNORED)
    if not is_text or not isinstance(part.get("text"), str):
        raise bad_request(name, f"{name} is not a text part; this model reads only text")
    return str(part["text"])


def parse_prompts(body: Mapping[str, Any]) -> list[Prompt]:
    """Raises Fault."""
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and len(prompt) > 0:
        if all(is_token_id(each) for each in prompt):
            return [prompt]
        if len(prompt) > MAX_PROMPTS:
            raise bad_request("prompt", f"prompt is {len(prompt)} prompts; it must be at most {MAX_PROMPTS}")
        if all(isinstance(each, str) or (isinstance(each, list) and all(map(is_token_id, each))) for each in prompt):
            return list(prompt)
    raise bad_request("prompt", "prompt must be a string, a list of token ids, or a list of either")


def is_token_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
