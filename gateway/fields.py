"""Fields of OpenAI's request bodies (docs/server.md).

taken: has its documented effect.
refused: not supported and would change the output; neutral values pass.
ignored: does not change the output.

Unknown fields are refused.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any

from gateway.errors import FieldNames, bad_request

# Same name and meaning as in SamplingParams.
SAMPLING = {
    "temperature": "default 1",
    "top_p": "in [0, 1]; default 1",
    "top_k": "0 or -1: all",
    "min_p": "default 0",
    "seed": "reproduces an answer in every mode of speculation; default: random, returned as `paceline.seed`",
    "n": "samples per prompt, 1 to 64",
    "presence_penalty": "in [-2, 2]",
    "frequency_penalty": "in [-2, 2]",
    "repetition_penalty": "in [0.01, 100]",
    "logit_bias": "token ids as strings, biases in [-100, 100]",
    "stop": "a string or at most 64",
    "stop_token_ids": "at most 16,384",
    "allowed_token_ids": "at most 16,384",
    "banned_token_ids": "at most 16,384",
    "min_tokens": "suppresses the end of text until this many tokens are generated",
    "ignore_eos": "continues past the model's end of text",
}
COMMON = {
    "model": "the target model's name, or --model-name; optional",
    "stream": "server-sent events",
    "stream_options": "include_usage, continuous_usage_stats; include_obfuscation is ignored",
    "max_tokens": "maximum number of tokens to generate",
    "best_of": "must equal n: every sample is returned",
    "speculation": "an object with SPECULATION's fields, or true or false (docs/speculation.md)",
    "prediction": "predicted output, a source of drafts (docs/speculation.md)",
    "trace": "adds each round's trace to its chunk (docs/speculation.md)",
    "request_id": "for logs",
    "cache_salt": "requests with the same salt share cached prompts and recent answers; at most 256 characters",
    # At most one of these (gateway/formats.py).
    "response_format": "text, json_object or json_schema",
    "structured_outputs": "vLLM's: json, regex, choice, grammar or json_object",
    "guided_json": "vLLM's older name of structured_outputs.json",
    "guided_regex": "likewise",
    "guided_choice": "likewise",
    "guided_grammar": "likewise",
    "json_schema": "llama.cpp's: a JSON Schema",
    "grammar": "llama.cpp's: GBNF; Lark as well",
}
CHAT = {
    "messages": "roles system, developer, user, assistant, tool; content is text or text parts",
    "max_completion_tokens": "same as max_tokens; default: the model's maximum length",
    "logprobs": "true: each token's log-probability",
    "top_logprobs": "0 to 20 likeliest tokens at each position",
    "chat_template_kwargs": "passed to the model's chat template",
    "add_generation_prompt": "true",
    "parse_special_tokens": "true: special tokens spelled in messages become tokens instead of text",
    "reasoning_effort": "how long to think, for chat templates that can say so; ignored by others",
    # gateway/tools.py
    "tools": "functions that the model may call",
    "tool_choice": "none, auto, required, a function or allowed_tools; default: --tool-choice-default",
    "parallel_tool_calls": "true: several calls in one answer; default true",
}
TEXT = {
    "prompt": "a text, a list of token ids, or a list of either",
    "suffix": "fills in the middle: the text after the completion",
    "echo": "returns the prompt before the output, with its log-probabilities",
    "logprobs": "0 to 20 likeliest tokens at each position, plus the chosen one",
}
# Neutral values by field; null always passes. Some are taken by one of the APIs.
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "suffix": ("",),
    "continue_final_message": (False,),
    "add_special_tokens": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "include_reasoning": (True,),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "prompt_logprobs": (),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "bad_words": ([],),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "documents": ([],),
    "repeat_penalty": (1.0,),
    "typical_p": (1.0,),
    "mirostat": (0,),
    "logits_processors": ([],),
}
# Taken in place of refused fields.
NEWER = {"functions": "tools", "function_call": "tool_choice"}
IGNORED = {
    "user": "identifies the end user",
    "metadata": "the client's own labels",
    "store": "nothing is stored",
    "service_tier": "there is only one",
    "prompt_cache_key": "prefix caching needs no key",
    "prompt_cache_retention": "cached prefixes are evicted by recency",
    "safety_identifier": "identifies the end user",
    "priority": "scheduling is first come, first served",
}
# Keys of a message.
MESSAGE = ("role", "content", "tool_calls", "reasoning", "reasoning_content")
MESSAGE_REFUSED: dict[str, tuple[Any, ...]] = {
    "function_call": (),
    # Replaces the content.
    "refusal": ("",),
    "audio": (),
    "images": ([],),
    # Asks the model to continue this message.
    "prefix": (False,),
    "partial": (False,),
    "reasoning_details": ([],),
    "thinking": ("",),
}
MESSAGE_IGNORED = {
    # Taken if the role is tool.
    "name": "the speaker's name",
    "tool_call_id": "the call that a tool answers",
    "id": "the message's id",
    "parsed": "the content, as OpenAI's client has parsed it",
    "annotations": "sources that an answer cites",
    "provider_specific_fields": "extensions of other servers",
    "cache_control": "prefix caching needs no marks",
}
# Keys of a part of a message's content.
PART = ("type", "text")
PART_IGNORED = ("cache_control", "annotations", "logprobs")
# Keys of `tool_choice` by its type are the type and this.
TOOL_CHOICE = ("function", "allowed_tools")
ALLOWED_TOOLS = ("mode", "tools")
# Keys of a call in a message.
CALL = ("id", "type", "function")
CALL_FUNCTION = ("name", "arguments")
CALL_IGNORED = ("index", "provider_specific_fields", "extra_content", "cache_control")
PREDICTION = ("type", "content")
# Keys of `response_format` by its type.
RESPONSE_FORMAT = {"text": ("type",), "json_object": ("type",), "json_schema": ("type", "json_schema")}
JSON_SCHEMA = ("name", "schema", "strict", "description")
# Attributes of OutputFormat by field: of fields that are a format by themselves, and of keys in `structured_outputs`.
FORMATS = {
    "guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
    "json_schema": "json_schema", "grammar": "grammar",
}  # fmt: skip
STRUCTURED_OUTPUTS = {
    "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar", "json_object": "json_object",
}  # fmt: skip
STRUCTURED_OUTPUTS_OPTION = "disable_any_whitespace"
STRUCTURED_OUTPUTS_REFUSED: dict[str, tuple[Any, ...]] = {
    "whitespace_pattern": (),
    "disable_additional_properties": (False,),
    "structural_tag": (),
}
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
# Keys of `speculation` that set the number of draft tokens.
DRAFT_LENGTH = ("num_speculative_tokens", "draft_min", "draft_max", "entropy_beta")
SPECULATION = ("enabled", "drafter", *DRAFT_LENGTH, "rule", "lenience", "draft_temperature", "draft")
# Taken by every API that answers with items.
OURS = (
    *(name for name in SAMPLING if name not in ("n", "stop")), "speculation", "prediction", "request_id", "cache_salt",
    "chat_template_kwargs",
)  # fmt: skip
NOTHING: Mapping[str, tuple[Any, ...]] = MappingProxyType({})
# HTTP field names by the names in a coordinator's errors.
_SPECULATION_NAMES = {name: f"speculation.{name}" for name in SPECULATION} | {
    "num_speculative_tokens": "speculation.num_speculative_tokens"
}
_PROMPT_NAMES = {"text": "prompt", "token_ids": "prompt"}
_MESSAGES_NAMES = {
    "chat": "messages", "chat.messages": "messages",
    "chat.template_options": "chat_template_kwargs", "template_options": "chat_template_kwargs",
}  # fmt: skip
CHAT_NAMES: FieldNames = {**_SPECULATION_NAMES, **_MESSAGES_NAMES, "prompt": "messages", "logprobs": "top_logprobs"}
TEXT_NAMES: FieldNames = {
    **_SPECULATION_NAMES, **_PROMPT_NAMES, "prompt_logprobs": "logprobs", "infill": "suffix", "infill.prefix": "prompt",
    "infill.suffix": "suffix",
}  # fmt: skip
TOKENIZE_NAMES: FieldNames = {**_MESSAGES_NAMES, **_PROMPT_NAMES}
DETOKENIZE_NAMES: FieldNames = {"token_ids": "tokens"}


def check_fields(body: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Raises Fault naming the first unsupported field."""
    _check("", body, (*own, *COMMON, *SAMPLING), IGNORED, REFUSED)


def check_body(
    body: Mapping[str, Any], taken: Collection[str], ignored: Collection[str] = (),
    refused: Mapping[str, tuple[Any, ...]] = NOTHING,
) -> None:  # fmt: skip
    """As `check_fields`, for APIs that share only some of these fields."""
    _check("", body, taken, ignored, refused)


def check_message(message: Mapping[str, Any], name: str) -> None:
    _check(f"{name}.", message, MESSAGE, MESSAGE_IGNORED, MESSAGE_REFUSED)


def check_keys(
    given: Mapping[str, Any], taken: Collection[str], name: str, ignored: Collection[str] = (),
    refused: Mapping[str, tuple[Any, ...]] = NOTHING,
) -> None:  # fmt: skip
    _check(f"{name}.", given, taken, ignored, refused)


def _check(
    prefix: str, given: Mapping[str, Any], taken: Collection[str], ignored: Collection[str],
    refused: Mapping[str, tuple[Any, ...]],
) -> None:  # fmt: skip
    for key, value in given.items():
        if key in taken or key in ignored or value is None:
            continue
        name = prefix + key[:100]
        if key not in refused:
            known = f"; known fields: {', '.join(taken)}" if prefix else ""
            raise bad_request(name, f"unknown field {name!r}{known}", "unknown_field")
        # In Python True == 1; in JSON true is not 1, though 1 is 1.0.
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in refused[key]
        ):
            allowed = " or ".join(repr(each) for each in refused[key]) or "left out"
            hint = f"use {NEWER[key]}" if NEWER.get(key) in taken else f"it must be {allowed}"
            raise bad_request(name, f"{name} is not supported; {hint}", "unsupported_field")


def whole_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Converts whole floats to integers: JSON does not distinguish 1.0 from 1."""
    return {name: _whole(value) for name, value in body.items()}


def _whole(value: Any, depth: int = 2) -> Any:
    """`depth`: `prompt` may be a list of lists of token ids."""
    # No field takes integers above 64 bits.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    if isinstance(value, list) and depth and any(type(each) in (float, list) for each in value):
        return [_whole(each, depth - 1) for each in value]
    return value


def get(body: Mapping[str, Any], name: str, kind: type, allowed: str, default: Any = None) -> Any:
    """Raises Fault if the value is not a `kind`."""
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise bad_request(name, f"{name} is {value!r:.80}; it must be {allowed}")
    return value


def flag(body: Mapping[str, Any], name: str, default: bool = False, prefix: str = "") -> bool:
    """`prefix`: precedes the name in errors."""
    value = body.get(name)
    if value is not None and not isinstance(value, bool):
        raise bad_request(prefix + name, f"{prefix}{name} is {value!r:.80}; it must be true or false")
    return default if value is None else value
