"""The two forms of an answer: a chat's and a text's, in chunks and whole."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from gateway.errors import bad_request, from_paceline
from gateway.fields import CHAT, CHAT_NAMES, TEXT, check_fields, flag, get, whole_numbers
from gateway.requests import HttpRequest, _request, _sampling, parse_messages, parse_prompts
from gateway.router import TokenTexts
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.results import Deployment, TokenLogprobs

# What JSON can't say, minus infinity, in OpenAI's words: of tokens that could not come.
LOWEST = -9999.0


class ScoredToken(NamedTuple):
    """A token with its log-probabilities: None for a prompt's first."""

    token: int
    logprobs: TokenLogprobs | None
    # Where in the choice's text its own begins, in characters.
    text_offset: int


class Form(Protocol):
    """How an answer looks. `logprobs`: None where nobody asked."""

    prefix: str
    chunk_object: str
    whole_object: str

    def opening(self, index: int) -> dict[str, Any] | None:
        """A choice's first chunk, before any text; None: there is none."""

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]: ...

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]: ...

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        """Of tokens whose texts are known."""

    def join(self, parts: list[Any]) -> Any:
        """Of log-probabilities chunk by chunk, those of the whole."""


class ChatForm:
    """/v1/chat/completions."""

    prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token].text, "logprob": _finite(logprob), "bytes": list(texts[token].utf8)}

        content = []
        for token, each, _ in tokens:
            assert each is not None, "only a prompt's first token has none"
            likeliest = [entry(*pair) for pair in zip(each.top_token_ids, each.top_logprobs, strict=True)]
            content.append({**entry(token, each.logprob), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def join(self, parts: list[Any]) -> Any:
        return {"content": [entry for part in parts for entry in part["content"]], "refusal": None}


class TextForm:
    """/v1/completions."""

    prefix = "cmpl-"
    chunk_object = "text_completion"
    whole_object = "text_completion"

    def opening(self, index: int) -> dict[str, Any] | None:
        return None

    def delta(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def whole(self, index: int, text: str, logprobs: Any, reason: str) -> dict[str, Any]:
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> Any:
        """The chosen token is always among the likeliest: who compares the two finds the same float."""
        likeliest: list[dict[str, float] | None] = []
        for token, each, _ in tokens:
            if each is None:
                likeliest.append(None)
                continue
            by_text: dict[str, float] = {}
            # Likeliest first: of two tokens with the same text the likelier one stays.
            for other, logprob in zip(each.top_token_ids, each.top_logprobs, strict=True):
                by_text.setdefault(texts[other].text, _finite(logprob))
            by_text.setdefault(texts[token].text, _finite(each.logprob))
            likeliest.append(by_text)
        return {
            "tokens": [texts[each.token].text for each in tokens],
            "token_logprobs": [None if each is None else _finite(each.logprob) for _, each, _ in tokens],
            "top_logprobs": likeliest,
            "text_offset": [each.text_offset for each in tokens],
        }

    def join(self, parts: list[Any]) -> Any:
        return {name: [each for part in parts for each in part[name]] for name in parts[0]} if parts else None


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)


DEFAULT_TEXT_TOKENS = 16


def parse_chat(body: Mapping[str, Any], deployment: Deployment) -> HttpRequest:
    """Of /v1/chat/completions. Raises HttpError and InvalidArgument, both naming the field."""
    check_fields(body, CHAT)
    body = whole_numbers(body)
    name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
    most = get(body, name, int, "a whole number")
    if most is not None and most < 1:
        raise bad_request(name, f"{name} is {most}; it must be at least 1")
    top = None
    if flag(body, "logprobs"):
        top = get(body, "top_logprobs", int, "a whole number in [0, 20]", 0)
    elif body.get("top_logprobs"):
        raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
    options = get(body, "chat_template_kwargs", dict, "an object")
    if not flag(body, "add_generation_prompt", True):
        raise bad_request("add_generation_prompt", "add_generation_prompt is false; it must be true")
    if most is None:
        most = deployment.target.max_model_len
    try:
        sampling = _sampling(body, max_tokens=most, logprobs=top)
    except InvalidArgument as error:
        raise from_paceline(error, {**CHAT_NAMES, "max_tokens": name}) from None
    parses = flag(body, "parse_special_tokens")
    messages: list[Prompt] = [parse_messages(body)]
    return _request(body, deployment, messages, sampling, template_options=options, parses_special_tokens=parses)


def parse_text(body: Mapping[str, Any], deployment: Deployment) -> HttpRequest:
    """Of /v1/completions. Raises HttpError and InvalidArgument, both naming the field."""
    check_fields(body, TEXT)
    body = whole_numbers(body)
    most = get(body, "max_tokens", int, "a whole number", DEFAULT_TEXT_TOKENS)
    echo = flag(body, "echo")
    top = get(body, "logprobs", int, "a whole number in [0, 20]")
    if most == 0 and not echo:
        raise bad_request("max_tokens", "max_tokens is 0; it must be at least 1, or 0 with echo")
    sampling = _sampling(body, max_tokens=most, logprobs=top)
    if echo and top is not None:
        sampling = replace(sampling, prompt_logprobs=top)
    return _request(body, deployment, parse_prompts(body), sampling, echo=echo, is_raw=True)
