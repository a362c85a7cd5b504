"""Every field that a request's body may have, and what becomes of it.

taken: does what OpenAI's reference, or the server that invented it, says of it.
refused: it would change the answer and can't be served; values that ask for nothing special are let through.
ignored: it changes no answer.

A field that is in no table is refused by its name, and so is a key of a message. docs/http.md has these tables for
readers.
"""

from collections.abc import Collection, Mapping
from typing import Any

from gateway.errors import SAME_NAMES, Names, refuse

# Fields of SamplingParams that have the same name and meaning here.
SAMPLING = {
    "temperature": "default 1",
    "top_p": "in [0, 1]; default 1",
    "top_k": "0 or -1: all",
    "min_p": "default 0",
    "seed": "repeats a text in every mode of speculation; default: a fresh one, told as `paceline.seed`",
    "n": "samples of each prompt, 1 to 64",
    "presence_penalty": "in [-2, 2]",
    "frequency_penalty": "in [-2, 2]",
    "repetition_penalty": "in [0.01, 100]",
    "logit_bias": "token ids as strings, biases in [-100, 100]",
    "stop": "a string or at most 64",
    "stop_token_ids": "at most 16,384",
    "allowed_token_ids": "at most 16,384",
    "banned_token_ids": "at most 16,384",
    "min_tokens": "no end of text before so many tokens",
    "ignore_eos": "go on past the model's end of text",
}
COMMON = {
    "model": "the target model's name, or --model-name; may be left out",
    "stream": "server-sent events",
    "stream_options": "include_usage, continuous_usage_stats; include_obfuscation is ignored",
    "max_tokens": "most tokens to generate",
    "best_of": "the same as n: every sample is given",
    "speculation": "enabled, drafter, draft_tokens, draft_min, draft_max, entropy_beta, rule, coupled, lenience, "
    "draft_temperature (docs/drafting.md)",
    "prediction": "predicted output: drafts come from it (docs/drafting.md)",
    "trace": "each chunk says what its round did (docs/trace.md)",
    "request_id": "for logs",
    "cache_salt": "requests with the same one share cached prompts and recent answers; at most 256 characters",
}
CHAT = {
    "messages": "roles system, developer, user, assistant, tool; content as text or as text parts, joined as they are",
    "max_completion_tokens": "as max_tokens; default: as many as the model can hold",
    "logprobs": "true: each token's log-probability",
    "top_logprobs": "0 to 20 likeliest tokens at each position",
    "chat_template_kwargs": "given to the model's chat template",
    "add_generation_prompt": "true",
    "parse_special_tokens": "true: special tokens spelled in messages are tokens, not text",
}
TEXT = {
    "prompt": "a text, a list of token ids, or a list of either",
    "echo": "the prompt comes before the output, with its log-probabilities",
    "logprobs": "0 to 20 likeliest tokens at each position; the chosen one is always among them",
}
# With the values that ask for nothing special. None is always one.
REFUSED: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},),
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
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "structured_outputs": (),
    "grammar": ("",),
    "json_schema": (),
    "repeat_penalty": (1.0,),
    "typical_p": (1.0,),
    "mirostat": (0,),
    "logits_processors": ([],),
}
# What is ignored where another field says that it must not be used.
UNUSED = {"tools": ("tool_choice", "none"), "functions": ("function_call", "none")}
IGNORED = {
    "user": "names who asks",
    "metadata": "for the asker's own books",
    "store": "nothing is stored",
    "service_tier": "there is one",
    "parallel_tool_calls": "no tools are called",
    "prompt_cache_key": "prompts with the same beginning share the cache by themselves",
    "prompt_cache_retention": "the cache keeps what it has room for",
    "safety_identifier": "names who asks",
    "priority": "first come, first served",
}
# The same of the keys of a message. Of these the model's chat template is given role and content.
MESSAGE = ("role", "content")
MESSAGE_REFUSED: dict[str, tuple[Any, ...]] = {
    "tool_calls": ([],),
    "function_call": (),
    # What was said in place of a content.
    "refusal": ("",),
    "audio": (),
    "images": ([],),
    # The answer is to go on with this message.
    "prefix": (False,),
    "partial": (False,),
    "reasoning": ("",),
    "reasoning_content": ("",),
    "reasoning_details": ([],),
    "thinking": ("",),
}
MESSAGE_IGNORED = {
    "name": "names who speaks",
    "id": "names the message",
    "tool_call_id": "names the call that a tool answers",
    "annotations": "where an answer's statements come from",
    "provider_specific_fields": "another server's own",
    "cache_control": "prompts with the same beginning share the cache by themselves",
}
# Of a part of a message's content.
PART = ("type", "text")
PART_IGNORED = ("cache_control",)
PREDICTION = ("type", "content")
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")
# Of `speculation`, those that go together.
DRAFT_LENGTH = ("draft_tokens", "draft_min", "draft_max", "entropy_beta")
SPECULATION = ("enabled", "drafter", *DRAFT_LENGTH, "rule", "coupled", "lenience", "draft_temperature")
# What fields are called where a coordinator, or a check of ours, finds fault with them, and what clients call them.
_OF_SPECULATION = {name: f"speculation.{name}" for name in SPECULATION} | {
    "num_draft_tokens": "speculation.draft_tokens"
}
_OF_PROMPT = {"text": "prompt", "token_ids": "prompt"}
_OF_MESSAGES = {
    "chat": "messages", "chat.messages": "messages",
    "chat.template_options": "chat_template_kwargs", "template_options": "chat_template_kwargs",
}  # fmt: skip
CHAT_NAMES: Names = {**_OF_SPECULATION, **_OF_MESSAGES, "prompt": "messages", "logprobs": "top_logprobs"}
_NAMES: dict[str, Names] = {
    "/v1/chat/completions": CHAT_NAMES,
    "/v1/completions": {**_OF_SPECULATION, **_OF_PROMPT, "prompt_logprobs": "logprobs"},
    "/tokenize": {**_OF_MESSAGES, **_OF_PROMPT},
    "/detokenize": {"token_ids": "tokens"},
}


def whole_numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the body with its whole numbers, and those in its lists, as integers: to JSON, 1.0 and 1 are the same."""
    return {name: _whole(value) for name, value in body.items()}


def _whole(value: Any, depth: int = 2) -> Any:
    """`depth`: of lists; those of ids may be in a list of prompts."""
    # Beyond 64 bits there are no integers that a field could take.
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**64:
        return int(value)
    if isinstance(value, list) and depth and any(type(each) in (float, list) for each in value):
        return [_whole(each, depth - 1) for each in value]
    return value


def names_at(path: str) -> Names:
    """What the endpoint's fields are called by its clients, where that is another name than ours."""
    return _NAMES.get(path, SAME_NAMES)


def check_fields(body: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Raises HttpError naming the first field that can't be served. `own`: CHAT or TEXT."""
    unused = [name for name, (switch, off) in UNUSED.items() if body.get(switch) == off]
    _check("", body, (*own, *COMMON, *SAMPLING), (*IGNORED, *unused), REFUSED)


def check_message(message: Mapping[str, Any], name: str) -> None:
    """Raises HttpError naming the first key that can't be served. `name`: of the message."""
    _check(f"{name}.", message, MESSAGE, MESSAGE_IGNORED, MESSAGE_REFUSED)


def check_keys(given: Mapping[str, Any], taken: Collection[str], name: str, ignored: Collection[str] = ()) -> None:
    """Raises HttpError naming the first key of the object `name` that is neither taken nor ignored."""
    _check(f"{name}.", given, taken, ignored, {})


def _check(
    prefix: str, given: Mapping[str, Any], taken: Collection[str], ignored: Collection[str],
    refused: Mapping[str, tuple[Any, ...]],
) -> None:  # fmt: skip
    for key, value in given.items():
        if key in taken or key in ignored or value is None:
            continue
        name = prefix + key[:100]
        if key not in refused:
            known = f"; there are {', '.join(taken)}" if prefix else ""
            raise refuse(name, f"there is no field {name!r}{known}", "unknown_field")
        # True is no 1, and 1 is 1.0.
        if not any(
            value == neutral and isinstance(value, bool) == isinstance(neutral, bool) for neutral in refused[key]
        ):
            allowed = " or ".join(repr(each) for each in refused[key]) or "left out"
            raise refuse(name, f"{name} is not supported; it must be {allowed}", "unsupported_field")
