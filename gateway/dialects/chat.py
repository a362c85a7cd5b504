"""OpenAI's chat completions."""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.choices import ChoicesReply, OpenAi, ReplyChoice, ScoredToken, finite
from gateway.errors import bad_request, from_paceline
from gateway.fields import CHAT, CHAT_NAMES, check_fields, flag, get, whole_numbers
from gateway.generation import Generation
from gateway.requests import HttpRequest, parse_messages, parse_request, parse_sampling, parse_template_options
from gateway.router import TokenTexts
from gateway.tools import parse_tools
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.results import Deployment, Piece, ToolCall, ToolCallDelta


class Chat(OpenAi):
    """/v1/chat/completions."""

    path = "/v1/chat/completions"
    field_names = CHAT_NAMES
    id_prefix = "chatcmpl-"
    chunk_object = "chat.completion.chunk"
    whole_object = "chat.completion"

    def parse(self, body: Mapping[str, Any], deployment: Deployment) -> HttpRequest:
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
        options = parse_template_options(body, deployment.tokenizer.chat_template)
        if not flag(body, "add_generation_prompt", True):
            raise bad_request("add_generation_prompt", "add_generation_prompt is false; it must be true")
        if max_tokens is None:
            max_tokens = deployment.target.max_model_len
        try:
            sampling = parse_sampling(body, max_tokens=max_tokens, logprobs=num_likeliest)
        except InvalidArgument as error:
            raise from_paceline(error, {**CHAT_NAMES, "max_tokens": name}) from None
        parses = flag(body, "parse_special_tokens")
        messages: list[Prompt] = [parse_messages(body)]
        return parse_request(
            body, deployment, messages, sampling, parse_tools(body), template_options=options,
            parses_special_tokens=parses,
        )  # fmt: skip

    def reply(self, generation: Generation) -> ChoicesReply:
        return ChoicesReply(self, generation)

    def opening(self, index: int) -> dict[str, Any] | None:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def deltas(
        self, index: int, text: str, piece: Piece, logprobs: dict[str, Any] | None, reason: str | None
    ) -> list[dict[str, Any]]:
        """Gives each chunk one piece of a thought, the content or a call, and the last chunk the reason, as OpenAI does."""
        deltas: list[dict[str, Any]] = [{"reasoning_content": piece.reasoning}] if piece.reasoning else []
        deltas += [{"content": text}] if text else []
        deltas += ({"tool_calls": [_call_delta(each)]} for each in piece.tool_calls)
        if not deltas or (piece.tool_calls and reason is not None):
            deltas.append({})
        chunks: list[dict[str, Any]] = [
            {"index": index, "delta": each, "logprobs": None, "finish_reason": None} for each in deltas
        ]
        chunks[0]["logprobs"], chunks[-1]["finish_reason"] = logprobs, reason
        return chunks

    def whole(self, choice: ReplyChoice, logprobs: dict[str, Any] | None) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning
        if choice.calls:
            message |= {"content": choice.text or None, "tool_calls": [_call(each) for each in choice.calls]}
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


def _call(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _call_delta(delta: ToolCallDelta) -> dict[str, Any]:
    if not delta.id:
        return {"index": delta.index, "function": {"arguments": delta.arguments}}
    return {"index": delta.index, **_call(ToolCall(delta.id, delta.name, delta.arguments))}
