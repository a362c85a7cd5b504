"""Anthropic's messages."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar

from gateway.conversation import Conversation
from gateway.dialects.dialect import THOUGHT_SIGNATURE, Dialect, ItemsReply, named_event
from gateway.errors import REQUEST_ID_HEADER, Errors, Fault, FieldNames, bad_request, bad_value
from gateway.fields import CHAT_NAMES, OURS, check_body, check_keys, flag, get, whole_numbers
from gateway.formats import NO_FORMAT, NamedFormat, schema_format
from gateway.generation import Generation
from gateway.items import Closed, Grown, Item, Kind, Opened, Step
from gateway.requests import (
    HttpRequest,
    Serving,
    hinted_options,
    parse_request,
    parse_sampling,
    parse_text_part,
)
from gateway.tools import OfferedTools, Offers
from paceline.results import Finish

TAKEN = (
    "model", "messages", "system", "max_tokens", "tools", "tool_choice", "stop_sequences", "stream", "output_config",
    "thinking",
    *OURS,
)  # fmt: skip
IGNORED = (
    "context_management", "metadata", "service_tier", "container", "betas", "cache_control", "speed", "inference_geo",
)  # fmt: skip
REFUSED: dict[str, tuple[Any, ...]] = {"mcp_servers": ([],)}
OUTPUT_CONFIG = ("format", "effort")
TOOL = ("type", "name", "description", "input_schema", "strict")
TOOL_IGNORED = ("cache_control", "eager_input_streaming", "defer_loading", "allowed_callers", "input_examples")
BLOCK_IGNORED = ("cache_control", "citations", "caller")
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

    def status_of(self, fault: Fault) -> int:
        return _STATUSES.get(fault.status, fault.status)

    def error_body(self, fault: Fault, request_id: str) -> dict[str, Any]:
        kind = _TYPES.get(self.status_of(fault), "invalid_request_error")
        message = fault.message
        if fault.code == "context_length_exceeded" and fault.excess is not None:
            # Claude Code reads the numbers, and compacts the conversation.
            message = f"prompt is too long: {fault.excess.count} {fault.excess.unit} > {fault.excess.limit} maximum"
        return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}


class Messages(AnthropicErrors, Dialect):
    """/v1/messages."""

    path = "/v1/messages"

    def parse(self, body: Mapping[str, Any], serving: Serving) -> HttpRequest:
        check_body(body, TAKEN, IGNORED, REFUSED)
        body = whole_numbers(body)
        conversation = _parse_conversation(body)
        tools = _parse_tools(body, serving.tool_choice_default)
        config = get(body, "output_config", dict, "an object", {})
        check_keys(config, OUTPUT_CONFIG, "output_config")
        thinking = get(body, "thinking", dict, "an object", {})
        effort = "none" if thinking.get("type") == "disabled" else config.get("effort")
        sampling = parse_sampling(
            {**body, "stop": body.get("stop_sequences")},
            serving.sampling_defaults,
            max_tokens=get(body, "max_tokens", int, "a whole number", serving.deployment.target.max_model_len),
        )
        return parse_request(
            body,
            serving,
            [conversation.messages],
            sampling,
            _parse_format(config),
            tools,
            conversation.names,
            template_options=hinted_options(body, effort, serving),
        )

    def reply(self, generation: Generation) -> "MessagesReply":
        return MessagesReply(generation, self)


def _parse_conversation(body: Mapping[str, Any]) -> Conversation:
    """Raises Fault."""
    conversation, messages = Conversation(), body.get("messages")
    if system := _read_system(body.get("system"), "system"):
        conversation.add("system", system, "system")
    if not isinstance(messages, list) or not messages:
        raise bad_value("messages", messages, "a list with at least one message")
    for at, message in enumerate(messages):
        field = f"messages[{at}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise bad_value(field, message, "an object with content and a role: user, assistant or system")
        check_keys(message, ("role", "content"), field, ("id", "cache_control"))
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
        raise bad_request(
            "messages",
            "messages end with the assistant's; this model does not support assistant message prefill, so the "
            "conversation must end with a user message",
        )
    return conversation


def _read_system(content: Any, field: str) -> str:
    """Joins blocks by blank lines."""
    if content is None:
        return ""
    if isinstance(content, str):
        return _without_billing(content)
    if not isinstance(content, list):
        raise bad_value(field, content, "a string or a list of text blocks")
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
    return [(block, f"{field}.content[{at}]") for at, block in enumerate(content)]


def _add_user(conversation: Conversation, blocks: list[tuple[Any, str]], field: str) -> None:
    """Adds results, then the text."""
    texts: list[str] = []
    for block, name in blocks:
        match block:
            case {"type": "tool_result", "tool_use_id": str(call_id)}:
                check_keys(block, ("type", "tool_use_id", "content", "is_error"), name, BLOCK_IGNORED)
                result = "".join(_read_text(*each) for each in _blocks(block.get("content") or "", name))
                error = "Error: " if flag(block, "is_error", prefix=f"{name}.") else ""
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
            case {"type": "thinking", "thinking": str(thought)}:
                conversation.add_thought(thought, name)
            case {"type": "redacted_thinking"}:
                pass
            case {"type": "tool_use", "id": str(call_id), "name": str(tool), "input": dict(arguments)}:
                check_keys(block, ("type", "id", "name", "input"), name, BLOCK_IGNORED)
                conversation.add_call(call_id, tool, json.dumps(arguments, ensure_ascii=False), name)
            case _:
                conversation.add_answer(_read_text(block, name), name)


def _read_text(block: Any, field: str) -> str:
    if not isinstance(block, dict):
        raise bad_value(field, block, "a block: an object with a type")
    return parse_text_part({key: block[key] for key in block if key not in BLOCK_IGNORED}, field)


def _parse_tools(body: Mapping[str, Any], default_choice: str) -> OfferedTools:
    """Raises Fault."""
    offers, hosted = Offers(), list[Any]()
    for at, tool in enumerate(get(body, "tools", list, "a list of tools", [])):
        field = f"tools[{at}]"
        if not isinstance(tool, dict):
            raise bad_value(field, tool, "an object with name and input_schema")
        if tool.get("type", "custom") != "custom":
            # Tools with other types run at a provider, or are known to its models alone.
            offers.left_out.append(str(tool["type"])[:100])
            hosted.append(tool.get("name"))
            continue
        check_keys(tool, TOOL, field, TOOL_IGNORED)
        function = {key: tool.get(key) for key in ("name", "description", "strict")}
        offers.add({**function, "parameters": tool.get("input_schema")}, field)
    choice, parallel = _parse_choice(get(body, "tool_choice", dict, "an object", {}), hosted)
    return offers.make(choice, default_choice, parallel, "input_schema")


def _parse_choice(choice: Mapping[str, Any], hosted: list[Any]) -> tuple[str | None, bool]:
    check_keys(choice, ("type", "name", "disable_parallel_tool_use"), "tool_choice")
    parallel = not flag(choice, "disable_parallel_tool_use", prefix="tool_choice.")
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
            return get(choice, "name", str, "the name of a tool", ""), parallel
    raise bad_value("tool_choice.type", choice.get("type"), "one of auto, any, tool, none")


def _parse_format(config: Mapping[str, Any]) -> NamedFormat:
    given, field = get(config, "format", dict, "an object"), "output_config.format"
    if given is None:
        return NO_FORMAT
    check_keys(given, ("type", "schema"), field)
    if given.get("type") != "json_schema":
        raise bad_value(f"{field}.type", given.get("type"), "json_schema")
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
            case Opened(item), _:
                return [{"type": "content_block_start", **at, "content_block": _block(item, is_open=True)}]
            case Grown(_, piece), Kind.THOUGHT:
                delta = {"type": "thinking_delta", "thinking": piece}
            case Grown(_, piece), Kind.TEXT:
                delta = {"type": "text_delta", "text": piece}
            case Grown(_, piece), Kind.CALL:
                delta = {"type": "input_json_delta", "partial_json": piece}
            case Closed(), kind:
                signature = {
                    "type": "content_block_delta",
                    **at,
                    "delta": {"type": "signature_delta", "signature": THOUGHT_SIGNATURE},
                }
                stop = {"type": "content_block_stop", **at}
                return [signature, stop] if kind is Kind.THOUGHT else [stop]
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
    if item.kind is Kind.THOUGHT:
        return {"type": "thinking", "thinking": text, "signature": "" if is_open else THOUGHT_SIGNATURE}
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
