"""OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.choices import Form, ReplyChoice, ScoredToken, finite
from gateway.errors import bad_request, from_paceline
from gateway.fields import CHAT, CHAT_NAMES, check_fields, flag, get, whole_numbers
from gateway.formats import parse_format
from gateway.items import Grown, Item, Kind, Opened, Step
from gateway.requests import HttpRequest, Serving, parse_messages, parse_request, parse_sampling, parse_template_options
from gateway.router import TokenTexts
from gateway.tools import parse_tools
from paceline.client import Prompt
from paceline.errors import InvalidArgument


class Chat(Form):
    """/v1/chat/completions."""

    path = "/v1/chat/completions"
    field_names = CHAT_NAMES
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        check_fields(body, CHAT)
        body = whole_numbers(body)
        name = "max_tokens" if body.get("max_completion_tokens") is None else "max_completion_tokens"
        max_tokens = get(body, name, int, "a whole number")
        if max_tokens is not None and max_tokens < 1:
            raise bad_request(name, f"{name} is {max_tokens}; it must be at least 1")
        num_likeliest = None
        if flag(body, "logprobs"):
            num_likeliest = get(body, "top_logprobs", int, "a whole number in [0, 20]", 0)
        elif body.get("top_logprobs"):
            raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
        options = parse_template_options(body, serving.deployment.tokenizer.chat_template)
        if not flag(body, "add_generation_prompt", True):
            raise bad_request("add_generation_prompt", "add_generation_prompt is false; it must be true")
        if max_tokens is None:
            max_tokens = serving.deployment.target.max_model_len
        try:
            sampling = parse_sampling(body, serving.sampling_defaults, max_tokens=max_tokens, logprobs=num_likeliest)
        except InvalidArgument as error:
            raise from_paceline(error, {**CHAT_NAMES, "max_tokens": name}) from None
        parses = flag(body, "parse_special_tokens")
        messages: list[Prompt] = [parse_messages(body)]
        return parse_request(
            body, serving, messages, sampling, format=parse_format(body), tools=parse_tools(body, serving.tool_choice_default),
            template_options=options,
            parses_special_tokens=parses,
        )  # fmt: skip

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def deltas(
        self, index: int, text: str, steps: list[Step], logprobs: dict[str, Any] | None, reason: str | None
    ) -> list[dict[str, Any]]:
        """Gives each chunk one piece of a thought, the content or a call, and the last chunk the reason, as OpenAI does."""
        deltas = [each for each in map(_delta, steps) if each]
        if not deltas or (reason is not None and "tool_calls" in deltas[-1]):
            deltas.append({})
        chunks: list[dict[str, Any]] = [
            {"index": index, "delta": each, "logprobs": None, "finish_reason": None} for each in deltas
        ]
        chunks[0]["logprobs"], chunks[-1]["finish_reason"] = logprobs, reason
        return chunks

    def whole(self, choice: ReplyChoice, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if thought := "".join(each.text for each in choice.items.of(Kind.THOUGHT)):
            message["reasoning_content"] = thought
        if calls := [_call(each, each.text) for each in choice.items.of(Kind.CALL)]:
            message |= {"content": choice.text or None, "tool_calls": calls}
        return {"index": choice.index, "message": message, "logprobs": logprobs, "finish_reason": choice.reason}

    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> dict[str, Any]:
        def entry(token: int, logprob: float) -> dict[str, Any]:
            return {"token": texts[token].text, "logprob": finite(logprob), "bytes": list(texts[token].utf8)}

        content = []
        for token, each, _ in tokens:
            assert each is not None, "only an echoed prompt's first token has none"
            likeliest = [entry(*pair) for pair in zip(each.top_token_ids, each.top_logprobs, strict=True)]
            content.append({**entry(token, each.logprob), "top_logprobs": likeliest})
        return {"content": content, "refusal": None}

    def join_logprobs(self, parts: list[dict[str, Any]]) -> dict[str, Any]:
        return {"content": [entry for part in parts for entry in part["content"]], "refusal": None}


def _delta(step: Step) -> dict[str, Any]:
    match step:
        case Grown(Item(kind=Kind.THOUGHT), piece):
            return {"reasoning_content": piece}
        case Grown(Item(kind=Kind.TEXT), piece):
            return {"content": piece}
        case Opened(Item(kind=Kind.CALL) as item):
            return {"tool_calls": [{"index": item.call_index, **_call(item, "")}]}
        case Grown(item, piece):
            return {"tool_calls": [{"index": item.call_index, "function": {"arguments": piece}}]}
    return {}


def _call(item: Item, arguments: str) -> dict[str, Any]:
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
