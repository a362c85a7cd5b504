"""What an object in a request may have: a row for each field.

taken: has its documented effect. Its row says what it must be, and reads it.
refused: not supported and would change the output; neutral values pass.
ignored: does not change the output.

Unknown fields are refused, and null counts as left out (docs/server.md).
"""

import dataclasses
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from gateway.errors import FieldNames, bad_request, bad_value
from paceline.sampling_params import SamplingParams


class Field(NamedTuple):
    """A field that is taken.

    kind: what it must be; `object`: its parser, or SamplingParams, says.
    allowed: how an error says what it must be.
    stands_for: the field that this is another name of. The first that is given counts.
    """

    meaning: str
    kind: type = object
    allowed: str = ""
    default: Any = None
    stands_for: str = ""

    def check(self, name: str, value: Any) -> None:
        """Raises HttpError."""
        if not isinstance(value, self.kind) or (self.kind is not bool and isinstance(value, bool)):
            raise bad_value(name, value, self.allowed)


def flag(meaning: str, default: bool | None = False) -> Field:
    return Field(meaning, bool, "true or false", default)


def text(meaning: str, default: str | None = "") -> Field:
    return Field(meaning, str, "a string", default)


def number(meaning: str, allowed: str = "a whole number", stands_for: str = "") -> Field:
    return Field(meaning, int, allowed, stands_for=stands_for)


def table(meaning: str, default: Any = MappingProxyType({})) -> Field:
    return Field(meaning, dict, "an object", default)


def listing(meaning: str, allowed: str) -> Field:
    return Field(meaning, list, allowed, ())


class Values(dict[str, Any]):
    """The values of an object's fields, aliases under the names they stand for; a field that was left out has its default."""

    def __init__(self, defaults: Mapping[str, Any]) -> None:
        super().__init__(defaults)
        # What is given by another name than its own: the client's name of it.
        self.names: dict[str, str] = {}


NOTHING: Mapping[str, tuple[Any, ...]] = MappingProxyType({})


class Fields:
    """The fields of an object.

    refused: neutral values by name; null always passes.
    takes_others: unknown fields are ignored.
    """

    def __init__(
        self,
        taken: Mapping[str, Field],
        ignored: Collection[str] = (),
        refused: Mapping[str, tuple[Any, ...]] = NOTHING,
        takes_others: bool = False,
    ) -> None:
        self.taken, self.ignored, self.refused = taken, ignored, refused
        self.known = frozenset((*taken, *ignored, *refused))
        self._passing = frozenset((*taken, *ignored))
        self._takes_others = takes_others
        self._defaults: dict[str, Any] = {}
        # All names of what has several, in their order.
        self._names: dict[str, list[str]] = {each.stands_for: [] for each in taken.values() if each.stands_for}
        for name, field in taken.items():
            known_as = field.stands_for or name
            self._defaults.setdefault(known_as, field.default)
            if known_as in self._names:
                self._names[known_as].append(name)

    def read(self, given: Mapping[str, Any], name: str = "") -> Values:
        """Raises HttpError naming the first field that is not as its row says. `name`: of the object."""
        self.check(given, name)
        prefix, values = f"{name}." if name else "", Values(self._defaults)
        for key, value in given.items():
            if value is None or (field := self.taken.get(key)) is None:
                continue
            if field.kind is not object:
                field.check(prefix + key, value)
            if not field.stands_for:
                values[key] = value
        for known_as, names in self._names.items():
            if (first := next((each for each in names if given.get(each) is not None), known_as)) != known_as:
                values[known_as], values.names[known_as] = given[first], prefix + first
        return values

    def check(self, given: Mapping[str, Any], name: str = "") -> None:
        """Checks the names alone. Raises HttpError naming the first that is unknown or not supported."""
        for key, value in given.items():
            if value is None or key in self._passing or self._takes_others:
                continue
            full = f"{name}.{key[:100]}" if name else key[:100]
            if key not in self.refused:
                known = f"; known fields: {', '.join(self.taken)}" if name else ""
                raise bad_request(full, f"unknown field {full!r}{known}", "unknown_field")
            # In Python True == 1; in JSON true is not 1, though 1 is 1.0.
            if not any(
                value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
                for neutral in self.refused[key]
            ):
                allowed = " or ".join(repr(each) for each in self.refused[key]) or "left out"
                hint = f"use {NEWER[key]}" if NEWER.get(key) in self.taken else f"it must be {allowed}"
                raise bad_request(full, f"{full} is not supported; {hint}", "unsupported_field")


def plain(*names: str) -> dict[str, Field]:
    """Returns rows for fields that their parser checks."""
    return {name: Field("") for name in names}


# Parameters that the APIs read otherwise, or not at all.
_OWN = ("max_tokens", "logprobs", "prompt_logprobs", "beams", "length_penalty")
SAMPLING = {
    each.name: Field("as in SamplingParams") for each in dataclasses.fields(SamplingParams) if each.name not in _OWN
} | {
    "top_k": Field("as in SamplingParams; -1: all"),
    "seed": Field("reproduces an answer, under `match` in every mode of speculation; default: random, returned as `paceline.seed`"),
    "logit_bias": Field("as in SamplingParams, but token ids are strings"),
    "stop": Field("a string or a list"),
}  # fmt: skip
# Of any API that generates.
MODEL = text("the target model's name, or --served-model-name; optional", None)
STREAM = flag("server-sent events")
STREAMED = {
    "stream": STREAM,
    "stream_options": table("include_usage, continuous_usage_stats; include_obfuscation is ignored"),
}
EXTENSIONS = {
    "speculation": Field("an object with SPECULATION's fields, or true or false (docs/speculation.md)"),
    "prediction": Field("predicted output, a source of drafts (docs/speculation.md)"),
    "request_id": text("for logs"),
    "cache_salt": text("requests with the same salt share cached prompts and recent responses; at most 256 characters"),
}
TEMPLATE_OPTIONS = {"chat_template_kwargs": table("passed to the model's chat template", None)}
TOOLS = {"tools": listing("functions that the model may call", "a list of tools")}
# Of OpenAI's two older APIs.
COMMON = {
    "model": MODEL,
    **STREAMED,
    "max_tokens": number("maximum number of tokens to generate; -1: as many as the model can"),
    "n_predict": number("llama.cpp's name of max_tokens", stands_for="max_tokens"),
    "repeat_penalty": Field("llama.cpp's name of repetition_penalty", stands_for="repetition_penalty"),
    "best_of": number("must equal n: every sample is returned", "the same as n"),
    **EXTENSIONS,
    "trace": flag("adds each round's trace to its chunk (docs/speculation.md)"),
    # At most one of these (gateway/format_fields.py).
    "response_format": table("text, json_object or json_schema", None),
    "structured_outputs": table("vLLM's: json, regex, choice, grammar or json_object", None),
    "guided_json": Field("vLLM's older name of structured_outputs.json"),
    "guided_regex": Field("likewise"),
    "guided_choice": Field("likewise"),
    "guided_grammar": Field("likewise"),
    "json_schema": Field("llama.cpp's: a JSON Schema"),
    "grammar": Field("llama.cpp's: GBNF; Lark as well"),
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
    "suffix": ("",),
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
    "logits_processors": ([],),
    # llama.cpp's samplers, switched off.
    "typical_p": (1.0,),
    "mirostat": (0,),
    "tfs_z": (1.0,),
    "top_n_sigma": (-1.0, 0.0),
    "dynatemp_range": (0.0,),
    "xtc_probability": (0.0,),
    "dry_multiplier": (0.0,),
    "adaptive_target": (-1.0,),
    "lora": ([],),
    "n_probs": (0,),
    "return_tokens": (False,),
    "t_max_predict_ms": (0, -1),
    "n_indent": (0,),
}
# Taken in place of refused fields.
NEWER = {"functions": "tools", "function_call": "tool_choice"}
# Labels and hints, which no API takes and all ignore.
HINTS = {
    "user": "identifies the end user",
    "metadata": "the client's own labels",
    "client_metadata": "the client's own labels",
    "store": "nothing is stored",
    "service_tier": "there is only one",
    "prompt_cache_key": "prefix caching needs no key",
    "prompt_cache_retention": "cached prefixes are evicted by recency",
    "prompt_cache_options": "prefix caching is automatic",
    "prompt_cache_breakpoint": "prefix caching needs no marks",
    "cache_control": "prefix caching needs no marks",
    "safety_identifier": "identifies the end user",
    "user_profile_id": "identifies the end user",
    "workspace_id": "there is only one",
    "moderation": "nothing is moderated",
    "verbosity": "a wish that chat templates can't say",
    "diagnostics": "asks why a prompt was not cached",
    "context_management": "the client's messages are all that there is",
    "access_programs": "there are none",
    "billing_policy": "nothing is billed",
    "fallbacks": "there is only one model",
    "fallback_credit_token": "nothing is billed",
    "inference_geo": "there is only one place",
    "speed": "there is only one",
    "betas": "there are none",
    "container": "no tool runs here",
}
IGNORED = {
    **HINTS,
    "priority": "scheduling is first come, first served",
    # llama.cpp's
    "id_slot": "prefix caching needs no slots",
    "cache_prompt": "prefix caching is automatic",
    "n_cache_reuse": "prefix caching is automatic",
    "n_keep": "contexts are not shifted",
    "n_discard": "contexts are not shifted",
    "samplers": "their order is fixed",
    "min_keep": "at least one token is always kept",
    "repeat_last_n": "penalties count the whole text",
    "response_fields": "responses are always whole",
    "timings_per_token": "usage has the figures",
    "return_progress": "prompts are read without reports",
    "post_sampling_probs": "log-probabilities are the model's own",
    # Of samplers that are switched off.
    "mirostat_tau": "mirostat must be 0",
    "mirostat_eta": "mirostat must be 0",
    "dynatemp_exponent": "dynatemp_range must be 0",
    "xtc_threshold": "xtc_probability must be 0",
    "dry_base": "dry_multiplier must be 0",
    "dry_allowed_length": "dry_multiplier must be 0",
    "dry_penalty_last_n": "dry_multiplier must be 0",
    "dry_sequence_breakers": "dry_multiplier must be 0",
    "adaptive_decay": "adaptive_target must be negative",
}
# Of every API that answers with items.
OURS = {**{name: row for name, row in SAMPLING.items() if name not in ("n", "stop")}, **EXTENSIONS, **TEMPLATE_OPTIONS}
# Fields of `speculation` that set the number of draft tokens.
DRAFT_LENGTH = ("num_speculative_tokens", "draft_min", "draft_max", "entropy_beta")
SPECULATION = Fields(
    {
        "enabled": flag("speculate at all", True),
        **plain("drafter", *DRAFT_LENGTH, "rule", "lenience", "draft_temperature", "draft_model"),
    }
)
# HTTP field names by the names in a coordinator's errors.
PROMPT_NAMES = {"text": "prompt", "token_ids": "prompt"}
MESSAGES_NAMES = {
    "chat": "messages", "chat.messages": "messages",
    "chat.template_options": "chat_template_kwargs", "template_options": "chat_template_kwargs",
}  # fmt: skip
SPECULATION_NAMES = {each: f"speculation.{each}" for each in SPECULATION.taken}
CHAT_NAMES: FieldNames = {**SPECULATION_NAMES, **MESSAGES_NAMES, "prompt": "messages", "logprobs": "top_logprobs"}


def openai_fields(own: Mapping[str, Field]) -> Fields:
    """Returns the fields of one of OpenAI's two older APIs. `own`: those that the other does not take."""
    return Fields({**own, **SAMPLING, **COMMON}, IGNORED, REFUSED)


def whole_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Converts whole floats to integers: JSON does not distinguish 1.0 from 1."""
    return {name: _whole(value) for name, value in body.items()}


def _whole(value: Any, depth: int = 2) -> Any:
    """`depth`: `prompt` may be a list of lists of token ids."""
    # No field takes integers above 64 bits.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    if isinstance(value, list) and depth and not {float, list}.isdisjoint(map(type, value)):
        return [_whole(each, depth - 1) for each in value]
    return value
