"""OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.choices import Form, ReplyChoice, ScoredToken, finite
from gateway.errors import bad_request
from gateway.fields import CHAT_NAMES, TEMPLATE_OPTIONS, TOOLS, Field, flag, number, openai_fields, whole_numbers
from gateway.format_fields import parse_format
from gateway.items import Item, ItemDelta, ItemStarted, Kind, Step
from gateway.requests import (
    HttpRequest,
    Serving,
    parse_max_tokens,
    parse_messages,
    parse_request,
    parse_sampling,
    parse_template_options,
)
from gateway.token_texts import TokenTexts
from gateway.tool_fields import parse_tools
from paceline.client import Prompt

FIELDS = openai_fields(
    {
        "messages": Field("roles system, developer, user, assistant, tool; content is text or text parts"),
        "max_completion_tokens": number(
            "the same as max_tokens; default: the model's maximum length", stands_for="max_tokens"
        ),
        "logprobs": flag("each token's log-probability"),
        "top_logprobs": number("likeliest tokens at each position", "a whole number in [0, 20]"),
        **TEMPLATE_OPTIONS,
        "add_generation_prompt": flag("false with continue_final_message", True),
        "continue_final_message": flag("the answer continues the last message, an assistant's"),
        "parse_special_tokens": flag("special tokens spelled in messages become tokens instead of text"),
        "reasoning_effort": Field("how long to think, for chat templates that can say so; ignored by others"),
        # gateway/tool_fields.py
        **TOOLS,
        "tool_choice": Field("none, auto, required, a function or allowed_tools; default: --tool-choice-default"),
        "parallel_tool_calls": flag("several calls in one answer", True),
    }
)


class Chat(Form):
    """/v1/chat/completions."""

    path = "/v1/chat/completions"
    field_names = CHAT_NAMES
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        values = FIELDS.read(whole_numbers(body))
        longest = serving.deployment.target.max_model_len
        max_tokens = parse_max_tokens(values, longest, longest)
        num_likeliest = values["top_logprobs"]
        if values["logprobs"]:
            num_likeliest = num_likeliest or 0
        elif num_likeliest:
            raise bad_request("top_logprobs", "top_logprobs needs logprobs to be true")
        else:
            num_likeliest = None
        options = parse_template_options(values, values["reasoning_effort"], serving)
        if not values["add_generation_prompt"] and not values["continue_final_message"]:
            allowed = "it must be true without continue_final_message"
            raise bad_request("add_generation_prompt", f"add_generation_prompt is false; {allowed}")
        sampling = parse_sampling(values, serving.sampling_defaults, max_tokens=max_tokens, logprobs=num_likeliest)
        messages: list[Prompt] = [parse_messages(values)]
        return parse_request(
            values, serving, messages, sampling, parse_format(values), parse_tools(values, serving.tool_choice_default),
            template_options=options,
            parses_special_tokens=values["parse_special_tokens"],
        )  # fmt: skip

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def deltas(
        self, index: int, text: str, steps: list[Step], logprobs: dict[str, Any] | None, reason: str | None
    ) -> list[dict[str, Any]]:
        """Gives each chunk one part of the reasoning, the content or a call, and the last chunk the reason, as OpenAI does."""
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
        if reasoning := "".join(each.text for each in choice.items.of(Kind.REASONING)):
            message["reasoning_content"] = reasoning
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
        case ItemDelta(Item(kind=Kind.REASONING), new_text):
            return {"reasoning_content": new_text}
        case ItemDelta(Item(kind=Kind.TEXT), new_text):
            return {"content": new_text}
        case ItemStarted(Item(kind=Kind.CALL) as item):
            return {"tool_calls": [{"index": item.call_index, **_call(item, "")}]}
        case ItemDelta(item, new_text):
            return {"tool_calls": [{"index": item.call_index, "function": {"arguments": new_text}}]}
    return {}


def _call(item: Item, arguments: str) -> dict[str, Any]:
    return {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": arguments}}
