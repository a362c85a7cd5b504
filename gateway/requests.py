"""Parses request fields that are common to all dialects."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from gateway.errors import NO_RENAMES, FieldNames, bad_request, bad_value, renamed
from gateway.fields import DRAFT_LENGTH, SAMPLING, SPECULATION, Field, Fields, Values, flag, plain, whole_numbers
from gateway.format_fields import NO_FORMAT, NamedFormat
from gateway.tool_fields import NO_TOOLS, OfferedTools, parse_calls
from paceline.chats import EFFORTS, MAX_MESSAGES, MAX_PARTS, ROLES, TOOL
from paceline.checks import require_at_most
from paceline.client import Prompt
from paceline.errors import CONTEXT_LENGTH_EXCEEDED, InvalidArgument, shown
from paceline.output_format import OutputFormat
from paceline.results import Deployment
from paceline.sampling_params import SamplingParams, check_lengths
from paceline.speculation_params import Drafter, Rule, SpeculationParams, parse_draft_length

MAX_PROMPTS = 256
# Of all prompts of a request together.
MAX_GENERATIONS = MAX_PROMPTS
# Of an assistant's message, as vLLM and others call it.
REASONING = ("reasoning", "reasoning_content")
# True in the last message, an assistant's: the answer continues it. Mistral's and DeepSeek's name, and Qwen's.
PREFIX = ("prefix", "partial")
# Taken if the role is tool.
OF_TOOLS = ("tool_call_id", "name")
MESSAGE = Fields(
    {
        **plain("role", "content", "tool_calls", *REASONING),
        **dict.fromkeys(PREFIX, flag("the answer continues this message")),
    },
    ignored={
        "name": "the speaker's name",
        "tool_call_id": "the call that a tool answers",
        "id": "the message's id",
        "parsed": "the content, as OpenAI's client has parsed it",
        "annotations": "sources that an answer cites",
        "provider_specific_fields": "extensions of other servers",
        "cache_control": "prefix caching needs no marks",
    },
    refused={
        "function_call": (),
        # Replaces the content.
        "refusal": ("",),
        "audio": (),
        "images": ([],),
        "reasoning_details": ([],),
        "thinking": ("",),
    },
)
# A part of a message's content.
PART = Fields(plain("type", "text"), ("cache_control", "annotations", "logprobs"))
STREAM_OPTIONS = Fields(
    {
        "include_usage": flag("a last chunk with usage"),
        "continuous_usage_stats": flag("usage in every chunk"),
        "include_obfuscation": Field("ignored"),
    }
)
PREDICTION = Fields(plain("type", "content"))
# llama.cpp's request for as many tokens as possible.
UNLIMITED = (-1, -2)
# What turns reasoning on and off in templates of different models.
SWITCHES = ("enable_thinking", "thinking")
_TAG_BEGIN, _TAG_END = re.compile(r"\{[{%]"), re.compile(r"[%}]\}")
_QUOTED = re.compile(r"""'[^']*'|"[^"]*\"""")
_VARIABLE = re.compile(r"(?<![\w.])[A-Za-z_]\w*")
LISTS = frozenset(each.name for each in fields(SamplingParams) if each.default == ())
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
    values: Values, serving: Serving, prompts: Sequence[Prompt], sampling: SamplingParams,
    format: NamedFormat = NO_FORMAT, tools: OfferedTools = NO_TOOLS, names: FieldNames = NO_RENAMES, **more: Any,
) -> HttpRequest:  # fmt: skip
    """`names`: the client's of other fields. `more`: fields of HttpRequest. Raises HttpError and InvalidArgument."""
    if len(prompts) * sampling.n > MAX_GENERATIONS:
        most = MAX_GENERATIONS // len(prompts)
        raise bad_request(
            "n",
            f"n is {sampling.n} for each of {len(prompts)} prompts; it must be at most {most}, for {MAX_GENERATIONS} samples "
            "in all",
        )
    options = STREAM_OPTIONS.read(asked := values.get("stream_options", {}), "stream_options")
    is_stream, is_traced = values["stream"], values.get("trace", False)
    if asked and not is_stream:
        raise bad_request("stream_options", "stream_options needs stream to be true")
    if is_traced and not is_stream:
        raise bad_request("trace", "trace needs stream to be true: only a stream returns rounds")
    speculation = _parse_speculation(values["speculation"], serving.deployment.defaults, sampling)
    if speculation is not None:
        speculation.check(sampling)
    return HttpRequest(
        prompts=prompts,
        sampling=sampling,
        speculation=speculation,
        prediction=_parse_prediction(values.get("prediction")),
        is_traced=is_traced,
        is_stream=is_stream,
        includes_usage=options["include_usage"],
        has_usage_in_every_chunk=options["continuous_usage_stats"],
        request_id=values["request_id"],
        cache_salt=values["cache_salt"],
        format=format.format,
        names={**names, **format.names, **tools.names},
        tools=tools,
        **more,
    )


def parse_sampling(values: Values, defaults: Mapping[str, Any], **more: Any) -> SamplingParams:
    """`more`: other parameters. Raises HttpError and InvalidArgument."""
    given = {"temperature": 1.0, **defaults}
    given |= {name: values[name] for name in SAMPLING if values.get(name) is not None}
    check_lengths(given)
    if given.get("top_k") == -1:
        given["top_k"] = 0
    if isinstance(given.get("stop"), str):
        given["stop"] = (given["stop"],)
    if isinstance(given.get("seed"), int) and -(2**63) <= given["seed"] < 0:
        given["seed"] += 2**64
    if isinstance(given.get("logit_bias"), dict):
        given["logit_bias"] = {_parse_token_id(name): bias for name, bias in given["logit_bias"].items()}
    for name, value in given.items():
        if name in LISTS and isinstance(value, list):
            given[name] = tuple(value)
    num_samples = given.get("n", 1)
    if (best_of := values.get("best_of")) is not None and best_of != num_samples:
        raise bad_request("best_of", f"best_of is {best_of}; it must be the same as n, which is {shown(num_samples)}")
    try:
        return SamplingParams(**given, **more)
    except InvalidArgument as error:
        raise renamed(error, values.names) from None


def parse_max_tokens(values: Values, default: int, unlimited: int, least: int = 1) -> int:
    """`unlimited`: what UNLIMITED means. Raises HttpError."""
    name, num_tokens = values.names.get("max_tokens", "max_tokens"), values["max_tokens"]
    if num_tokens is None:
        return default
    if num_tokens in UNLIMITED:
        return unlimited
    if num_tokens < least:
        raise bad_request(name, f"{name} is {num_tokens}; it must be at least {least}, or -1 for no limit")
    return int(num_tokens)


def _parse_token_id(name: str) -> int:
    if not (name.isascii() and name.isdecimal() and len(name) < 11):
        raise bad_request("logit_bias", f"logit_bias has the key {name[:80]!r}; keys must be token ids")
    return int(name)


def _parse_speculation(asked: Any, defaults: SpeculationParams, sampling: SamplingParams) -> SpeculationParams | None:
    if asked is None:
        return None
    if isinstance(asked, bool):
        return defaults.overruled_by({"enabled": asked}, sampling)
    if not isinstance(asked, dict):
        raise bad_value("speculation", asked, "an object, true or false")
    values = SPECULATION.read(whole_numbers(asked), "speculation")
    given = {name: value for name, value in values.items() if value is not None}
    for name, kind in (("drafter", Drafter), ("rule", Rule)):
        if name in given:
            given[name] = _parse_enum(given, name, kind)
    length = {name: given.pop(name) for name in DRAFT_LENGTH if name in given}
    if length:
        text = str(length.pop("num_speculative_tokens")) if "num_speculative_tokens" in length else None
        given["num_speculative_tokens"] = parse_draft_length(text, **length)
    return defaults.overruled_by(given, sampling)


def _parse_enum(asked: Mapping[str, Any], name: str, kind: type[E]) -> E:
    names = [each.value for each in kind]
    if asked[name] not in names:
        allowed = ", ".join(names)
        raise bad_value(f"speculation.{name}", asked[name], f"one of {allowed}")
    return kind(asked[name])


def _parse_prediction(asked: Any) -> str | None:
    """Accepts OpenAI's object or the text itself."""
    if isinstance(asked, dict):
        PREDICTION.check(asked, "prediction")
        if asked.get("type", "content") != "content":
            raise bad_request("prediction.type", f"prediction.type is {shown(asked['type'])}; it must be 'content'")
        asked = asked.get("content", "")
    return None if asked is None else parse_text_parts(asked, "prediction.content")


def parse_template_options(
    values: Values, effort: Any, serving: Serving, turns_on: bool = False
) -> dict[str, Any] | None:
    """Returns the template's arguments, with the effort in the variables that the template reads. Raises HttpError.

    An effort that the template refuses becomes the nearest that it takes. `turns_on`: the request asks for reasoning, maybe
    without an effort.
    """
    options: dict[str, Any] | None = values["chat_template_kwargs"]
    if effort is None and not turns_on:
        return options
    if effort is not None and effort not in EFFORTS:
        raise bad_value("reasoning_effort", effort, f"one of {', '.join(EFFORTS)}")
    tokenizer = serving.deployment.tokenizer
    read = _variables_of(tokenizer.chat_template or "")
    taken = None if effort is None else _nearest_effort(effort, tokenizer.refused_efforts)
    told: dict[str, Any] = {"reasoning_effort": taken} if taken and "reasoning_effort" in read else {}
    told |= {name: effort != "none" for name in SWITCHES if name in read}
    return {**told, **(options or {})} if told else options


def _nearest_effort(effort: str, refused: Collection[str]) -> str | None:
    """Returns the nearest effort that is not refused, the greater of two equally near. "none" is exchanged for no other, and none for it."""
    if effort not in refused:
        return effort
    place = EFFORTS.index(effort)
    others = [each for each in EFFORTS[::-1] if each not in (*refused, "none") and effort != "none"]
    return min(others, key=lambda each: abs(EFFORTS.index(each) - place), default=None)


@lru_cache(maxsize=8)
def _variables_of(chat_template: str) -> set[str]:
    """Returns the names that stand in a template's tags, other than those of attributes and in quotes."""
    return {name for tag in _tags_of(chat_template) for name in _VARIABLE.findall(_QUOTED.sub("", tag))}


def _tags_of(chat_template: str) -> Iterator[str]:
    at = 0
    while (begin := _TAG_BEGIN.search(chat_template, at)) and (end := _TAG_END.search(chat_template, begin.end())):
        yield chat_template[begin.end() : end.start()]
        at = end.end()


def hinted_options(values: Values, effort: Any, serving: Serving, turns_on: bool = False) -> dict[str, Any] | None:
    """As `parse_template_options`; another effort than EFFORTS is ignored, as a hint that the template can't take."""
    return parse_template_options(values, effort if effort in EFFORTS else None, serving, turns_on)


def parse_messages(values: Values) -> list[dict[str, Any]]:
    """Raises HttpError."""
    messages = values["messages"]
    if not isinstance(messages, list) or not messages:
        raise bad_request("messages", "messages must be a list with at least one message")
    require_at_most(MAX_MESSAGES, len(messages), "messages", "messages")
    parsed = [_parse_message(each, f"messages[{index}]") for index, each in enumerate(messages)]
    if values["continue_final_message"]:
        parsed[-1]["prefix"] = True
    return parsed


def _parse_message(message: Any, name: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise bad_request(name, f"{name} must be an object with role and content")
    values = MESSAGE.read(message, name)
    role = values["role"]
    if not isinstance(role, str) or role not in ROLES:
        raise bad_request(f"{name}.role", f"{name}.role is {shown(role)}; it must be one of {', '.join(ROLES)}")
    content = values["content"]
    is_silent = content is None and role in ("assistant", TOOL)
    parsed: dict[str, Any] = {
        "role": role,
        "content": "" if is_silent else parse_text_parts(content, f"{name}.content"),
    }
    if values["tool_calls"] is not None:
        parsed["tool_calls"] = parse_calls(values["tool_calls"], f"{name}.tool_calls")
    for key in (*REASONING, *(OF_TOOLS if role == TOOL else ())):
        if message.get(key) is not None:
            if not isinstance(message[key], str):
                raise bad_value(f"{name}.{key}", message[key], "a string")
            parsed["reasoning" if key in REASONING else key] = message[key]
    if any(values[key] for key in PREFIX):
        parsed["prefix"] = True
    return parsed


def parse_text_parts(content: Any, name: str, types: Collection[str] = ("text",)) -> str:
    """Joins without separators: clients may split text anywhere. `types`: of text parts. Raises HttpError."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise bad_request(name, f"{name} is {shown(content)}; it must be a string or a list of text parts")
    require_at_most(MAX_PARTS, len(content), name, "parts")
    return "".join(parse_text_part(part, f"{name}[{index}]", types) for index, part in enumerate(content))


def parse_text_part(part: Any, name: str, types: Collection[str] = ("text",)) -> str:
    """Raises HttpError."""
    is_text = isinstance(part, dict) and part.get("type") in types
    if is_text:
        PART.check(part, name)
    if not is_text or not isinstance(part.get("text"), str):
        raise bad_request(name, f"{name} is not a text part; this model reads only text")
    return str(part["text"])


def parse_prompts(prompt: Any, max_tokens: int) -> list[Prompt]:
    """`max_tokens`: of one prompt of token ids. Raises HttpError and InvalidArgument."""

    def are_ids(values: list[Any]) -> bool:
        if type(values[0] if values else 0) is int:
            require_at_most(max_tokens, len(values), "prompt", "tokens", CONTEXT_LENGTH_EXCEEDED)
        return are_token_ids(values)

    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and len(prompt) > 0:
        if are_ids(prompt):
            return [prompt]
        if len(prompt) > MAX_PROMPTS:
            raise bad_request("prompt", f"prompt is {len(prompt)} prompts; it must be at most {MAX_PROMPTS}")
        if all(isinstance(each, str) or (isinstance(each, list) and are_ids(each)) for each in prompt):
            return list(prompt)
    raise bad_request("prompt", "prompt must be a string, a list of token ids, or a list of either")


def are_token_ids(values: Collection[Any]) -> bool:
    """Reads a million of them in milliseconds."""
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) < 2**31)
