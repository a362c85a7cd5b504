"""Anthropic's messages."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.chat_builder import Conversation
from gateway.dialects.dialect import REASONING_SIGNATURE, Dialect, ItemsReply, named_event
from gateway.errors import REQUEST_ID_HEADER, Errors, FieldNames, HttpError, bad_request, bad_value
from gateway.fields import (
    CHAT_NAMES,
    HINTS,
    MODEL,
    OURS,
    STREAM,
    TOOLS,
    Field,
    Fields,
    Values,
    flag,
    number,
    plain,
    table,
    text,
    whole_numbers,
)
from gateway.format_fields import NO_FORMAT, NamedFormat, schema_format
from gateway.items import Item, ItemDelta, ItemDone, ItemStarted, Kind, Step
from gateway.requests import (
    HttpRequest,
    Serving,
    hinted_options,
    parse_request,
    parse_sampling,
    parse_text_part,
)
from gateway.resumed_generation import Generation
from gateway.tool_fields import OfferedTools, Offers, listed_tools
from paceline.chats import MAX_MESSAGES, MAX_PARTS
from paceline.checks import require_at_most
from paceline.results import Finish

FIELDS = Fields(
    {
        "model": MODEL,
        "messages": Field("roles user, assistant and system; content is a text or blocks"),
        "system": Field("a text, or blocks of text"),
        "max_tokens": number("maximum number of tokens to generate; default: the model's maximum length"),
        **TOOLS,
        "tool_choice": table("auto, any, tool or none"),
        "stop_sequences": Field("a list of texts", stands_for="stop"),
        "stream": STREAM,
        "output_config": table("format and effort"),
        "thinking": table("of type disabled, enabled or adaptive: whether to think"),
        **OURS,
    },
    HINTS,
    {"mcp_servers": ([],), "compaction": ()},
)
# Anthropic's code of a request that can't be threaded: its clients then send the whole conversation.
NO_THREADS = "thread_unsupported_request"
OUTPUT_CONFIG = Fields({"format": table("of a JSON Schema", None), "effort": Field("how long to think")})
FORMAT = Fields(plain("type", "schema"))
TOOL = Fields(
    plain("type", "name", "description", "input_schema", "strict"),
    ("cache_control", "eager_input_streaming", "defer_loading", "allowed_callers", "input_examples"),
)
CHOICE = Fields(
    {
        **plain("type"),
        "name": Field("of type tool: which", str, "the name of a tool", ""),
        "disable_parallel_tool_use": flag("at most one call in an answer"),
    }
)
MESSAGE = Fields(plain("role", "content"), ("id", "cache_control"))
BLOCK_IGNORED = ("cache_control", "citations", "caller", "toolset_name")
RESULT = Fields({**plain("type", "tool_use_id", "content"), "is_error": flag("the tool failed")}, BLOCK_IGNORED)
CALL = Fields(plain("type", "id", "name", "input"), BLOCK_IGNORED)
DOCUMENT = Fields(
    {**plain("type", "source"), "title": text("before the text"), "context": text("before the text")}, BLOCK_IGNORED
)
# Claude Code's first system block; it changes with each request, and cached prompts would be lost.
BILLING_HEADER = "x-anthropic-billing-header:"
# By OpenAI's status: Anthropic's, and its type of error.
_STATUSES = {503: 529}
_TYPES = {
    401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large",
    429: "rate_limit_error", 500: "api_error", 529: "overloaded_error",
}  # fmt: skip
_STOP_REASONS = {"tool_calls": "tool_use", "length": "max_tokens"}


class AnthropicErrors(Errors):
    """Spells errors as Anthropic does."""

    field_names: ClassVar[FieldNames] = {**CHAT_NAMES, "stop": "stop_sequences"}
    id_headers = (REQUEST_ID_HEADER, "request-id")

    def status_of(self, http_error: HttpError) -> int:
        return _STATUSES.get(http_error.status, http_error.status)

    def error_body(self, http_error: HttpError, request_id: str) -> dict[str, Any]:
        kind = _TYPES.get(self.status_of(http_error), "invalid_request_error")
        message = http_error.message
        if http_error.code == "context_length_exceeded" and http_error.excess is not None:
            # Claude Code reads the numbers, and compacts the conversation.
            message = f"prompt is too long: {http_error.excess.count} {http_error.excess.unit} > {http_error.excess.limit} maximum"
        error: dict[str, Any] = {"type": kind, "message": message}
        if http_error.code == NO_THREADS:
            error["details"] = {"error_code": NO_THREADS, "unsupported": [http_error.field]}
        return {"type": "error", "error": error, "request_id": request_id}


class Messages(AnthropicErrors, Dialect):
    """/v1/messages."""

    path = "/v1/messages"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        if body.get("thread") is not None:
            problem = "thread is not supported: nothing is stored; send the whole conversation"
            raise bad_request("thread", problem, NO_THREADS)
        values = FIELDS.read(whole_numbers(body))
        conversation = _parse_conversation(values)
        tools = _parse_tools(values, serving.tool_choice_default)
        config = OUTPUT_CONFIG.read(values["output_config"], "output_config")
        thinking = values["thinking"].get("type")
        effort = "none" if thinking == "disabled" else config["effort"]
        num_tokens, longest = values["max_tokens"], serving.deployment.target.max_model_len
        sampling = parse_sampling(
            values, serving.sampling_defaults, max_tokens=longest if num_tokens is None else num_tokens
        )
        return parse_request(
            values,
            serving,
            [conversation.messages],
            sampling,
            _parse_format(config["format"]),
            tools,
            conversation.names,
            template_options=hinted_options(values, effort, serving, turns_on=thinking in ("enabled", "adaptive")),
        )

    def reply(self, generation: Generation) -> "MessagesReply":
        return MessagesReply(generation, self)


def _parse_conversation(values: Values) -> Conversation:
    """Raises HttpError."""
    conversation, messages = Conversation(), values["messages"]
    if system := _read_system(values["system"], "system"):
        conversation.add("system", system, "system")
    if not isinstance(messages, list) or not messages:
        raise bad_value("messages", messages, "a list with at least one message")
    require_at_most(MAX_MESSAGES, len(messages), "messages", "messages")
    for at, message in enumerate(messages):
        field = f"messages[{at}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise bad_value(field, message, "an object with content and a role: user, assistant or system")
        MESSAGE.check(message, field)
        content = message.get("content")
        if message["role"] == "system":
            if system := _read_system(content, f"{field}.content"):
                conversation.add("system", system, field)
        elif message["role"] == "user":
            _add_user(conversation, _blocks(content, field), field)
        else:
            conversation.end_message()
            _add_assistant(conversation, _blocks(content, field), field)
    if messages[-1]["role"] == "assistant":
        conversation.continue_last()
    return conversation


def _read_system(content: Any, field: str) -> str:
    """Joins blocks by blank lines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _without_billing(content)
    if not isinstance(content, list):
        raise bad_value(field, content, "a string or a list of text blocks")
    require_at_most(MAX_PARTS, len(content), field, "blocks")
    texts = (_without_billing(_read_text(block, f"{field}[{at}]")) for at, block in enumerate(content))
    return "\n\n".join(filter(None, texts))


def _without_billing(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(BILLING_HEADER) else text


def _blocks(content: Any, field: str) -> list[tuple[Any, str]]:
    """Returns a message's blocks with the client's names of them."""
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise bad_value(f"{field}.content", content, "a string or a list of blocks")
    require_at_most(MAX_PARTS, len(content), f"{field}.content", "blocks")
    return [(block, f"{field}.content[{at}]") for at, block in enumerate(content)]


def _add_user(conversation: Conversation, blocks: list[tuple[Any, str]], field: str) -> None:
    """Adds results, then the text."""
    texts: list[str] = []
    for block, name in blocks:
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                given = RESULT.read(block, name)
                result = "".join(_read_text(*each) for each in _blocks(given["content"] or "", name))
                error = "Error: " if given["is_error"] else ""
                conversation.add("tool", error + result, name, tool_call_id=call_id)
            case _:
                texts.append(_read_text(block, name))
    if texts:
        conversation.add("user", "".join(texts), field)


def _add_assistant(conversation: Conversation, blocks: list[tuple[Any, str]], field: str) -> None:
    if not blocks:
        conversation.add_answer("", field)
    for block, name in blocks:
        match block:
            case {"type": "thinking", "thinking": str(reasoning)}:
                conversation.add_reasoning(reasoning, name)
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(call_id), "name": str(tool), "input": dict(arguments)}:
                CALL.check(block, name)
                conversation.add_call(call_id, tool, json.dumps(arguments, ensure_ascii=False), name)
            case _:
                conversation.add_answer(_read_text(block, name), name)


def _read_text(block: Any, field: str) -> str:
    """Reads a block of text, or a document of plain text. Raises HttpError."""
    if not isinstance(block, dict):
        raise bad_value(field, block, "a block: an object with a type")
    match block:
        case {"type": "document", "source": {"type": "text", "data": str(text)}}:
            given = DOCUMENT.read(block, field)
            return "\n".join(filter(None, (given["title"], given["context"], text))) + "\n"
        case {"type": "document", "source": {"type": "content", "content": list(inner)}}:
            return "".join(_read_text(each, f"{field}.source.content[{at}]") for at, each in enumerate(inner)) + "\n"
    return parse_text_part({key: block[key] for key in block if key not in BLOCK_IGNORED}, field)


def _parse_tools(values: Values, default_choice: str) -> OfferedTools:
    """Raises HttpError."""
    offers, hosted = Offers(), list[Any]()
    for at, tool in enumerate(listed_tools(values)):
        field = f"tools[{at}]"
        if not isinstance(tool, dict):
            raise bad_value(field, tool, "an object with name and input_schema")
        if tool.get("type", "custom") != "custom":
            # Tools with other types run at a provider, or are known to its models alone.
            offers.left_out.append(str(tool["type"])[:100])
            hosted.append(tool.get("name"))
            continue
        TOOL.check(tool, field)
        function = {key: tool.get(key) for key in ("name", "description", "strict")}
        offers.add({**function, "parameters": tool.get("input_schema")}, field)
    choice, parallel = _parse_choice(values["tool_choice"], hosted)
    return offers.make(choice, default_choice, parallel, "input_schema")


def _parse_choice(choice: Mapping[str, Any], hosted: list[Any]) -> tuple[str | None, bool]:
    given = CHOICE.read(choice, "tool_choice")
    parallel = not given["disable_parallel_tool_use"]
    match choice.get("type"):
        case None if not choice:
            return None, parallel
        case "auto" | "none" as kind:
            return str(kind), parallel
        case "any":
            return "required", parallel
        case "tool":
            if choice.get("name") in hosted:
                raise bad_request("tool_choice.name", "tool_choice needs a tool that this server can't run")
            return given["name"], parallel
    raise bad_value("tool_choice.type", choice.get("type"), "one of auto, any, tool, none")


def _parse_format(asked: Mapping[str, Any] | None) -> NamedFormat:
    if asked is None:
        return NO_FORMAT
    field = "output_config.format"
    given = FORMAT.read(asked, field)
    if given["type"] != "json_schema":
        raise bad_value(f"{field}.type", given["type"], "json_schema")
    return schema_format(given, field)


class MessagesReply(ItemsReply):
    def encode(self, body: dict[str, Any]) -> bytes:
        return named_event(body)

    def begin(self) -> list[dict[str, Any]]:
        """Not before the tokens of the prompt are known: clients show them."""
        return [{"type": "message_start", "message": self._message([], None, None)}]

    def beat(self) -> bytes:
        return self.encode({"type": "ping"})

    def spell(self, step: Step) -> list[dict[str, Any]]:
        at = {"index": step.item.index}
        match step, step.item.kind:
            case ItemStarted(item), _:
                return [{"type": "content_block_start", **at, "content_block": _block(item, is_open=True)}]
            case ItemDelta(_, new_text), Kind.REASONING:
                delta = {"type": "thinking_delta", "thinking": new_text}
            case ItemDelta(_, new_text), Kind.TEXT:
                delta = {"type": "text_delta", "text": new_text}
            case ItemDelta(_, new_text), Kind.CALL:
                delta = {"type": "input_json_delta", "partial_json": new_text}
            case ItemDone(), kind:
                signature = {
                    "type": "content_block_delta",
                    **at,
                    "delta": {"type": "signature_delta", "signature": REASONING_SIGNATURE},
                }
                stop = {"type": "content_block_stop", **at}
                return [signature, stop] if kind is Kind.REASONING else [stop]
        return [{"type": "content_block_delta", **at, "delta": delta}]

    def end(self, finish: Finish) -> list[dict[str, Any]]:
        reason, stop = _stop_reason(finish)
        delta = {"stop_reason": reason, "stop_sequence": stop}
        return [
            {"type": "message_delta", "delta": delta, "usage": self._usage_body(), **self.paceline},
            {"type": "message_stop"},
        ]

    def answer(self) -> dict[str, Any]:
        assert self._finish is not None
        blocks = [_block(each) for each in self._items.all]
        return {**self._message(blocks, *_stop_reason(self._finish)), **self.paceline}

    def _message(self, blocks: list[dict[str, Any]], reason: str | None, stop: str | None) -> dict[str, Any]:
        return {
            "id": f"msg_{self._request.request_id}", "type": "message", "role": "assistant",
            "model": self._generation.model, "content": blocks, "stop_reason": reason, "stop_sequence": stop,
            "usage": self._usage_body(),
        }  # fmt: skip

    def _usage_body(self) -> dict[str, Any]:
        """Counts cached tokens apart."""
        usage = self._usage
        return {
            "input_tokens": usage.prompt_tokens - usage.cached_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "output_tokens": usage.completion_tokens,
        }


def _stop_reason(finish: Finish) -> tuple[str, str | None]:
    if finish.context_full:
        return "model_context_window_exceeded", None
    if finish.matched_stop:
        return "stop_sequence", finish.matched_stop
    return _STOP_REASONS.get(finish.reason, "end_turn"), None


def _block(item: Item, is_open: bool = False) -> dict[str, Any]:
    text = "" if is_open else item.text
    if item.kind is Kind.REASONING:
        return {"type": "thinking", "thinking": text, "signature": "" if is_open else REASONING_SIGNATURE}
    if item.kind is Kind.TEXT:
        return {"type": "text", "text": text}
    call_id = f"toolu_{item.call_id.removeprefix('call_')}"
    return {"type": "tool_use", "id": call_id, "name": item.name, "input": _arguments(text)}


def _arguments(text: str) -> dict[str, Any]:
    """Returns an object in any case: arguments that were cut are lost."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return arguments if isinstance(arguments, dict) else {}
