"""Reads the input, tools and format of OpenAI's responses."""

import base64
import binascii
import json
from collections.abc import Mapping
from typing import Any

from gateway.chat_builder import Conversation
from gateway.dialects.dialect import REASONING_SIGNATURE
from gateway.errors import bad_request, bad_value
from gateway.fields import Fields, Values, plain
from gateway.format_fields import NO_FORMAT, STRICT, NamedFormat, json_format, schema_format
from gateway.items import Kind
from gateway.requests import parse_text_parts
from gateway.tool_fields import CHOICES, OfferedTools, Offers, ToolName, listed_tools
from paceline.chats import MAX_PARTS
from paceline.checks import require_at_most

TEXT = Fields(plain("format"), ("verbosity",))
SCHEMA = Fields({**plain("type", "name", "schema"), **STRICT, **plain("description")})
TEXT_PARTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
# Tools that a provider runs.
HOSTED = (
    "web_search", "web_search_preview", "file_search", "code_interpreter", "image_generation", "mcp", "computer",
    "computer_use_preview", "local_shell", "shell", "apply_patch", "tool_search",
)  # fmt: skip
# Of a tool's type; a header names those that are left out.
MAX_KIND_CHARACTERS = 64
_TOOL_IGNORED = ("defer_loading", "allowed_callers", "output_schema", "cache_control", "async")
FUNCTION = Fields(plain("type", "name", "description", "parameters", "strict"), _TOOL_IGNORED)
CUSTOM = Fields(plain("type", "name", "description", "format"), _TOOL_IGNORED)
NAMESPACE = Fields(plain("type", "name", "description", "tools"), _TOOL_IGNORED)
# A custom tool, to the model.
CUSTOM_INPUT = "input"
CUSTOM_PARAMETERS = {
    "type": "object", "properties": {CUSTOM_INPUT: {"type": "string"}}, "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}  # fmt: skip
INSTEAD = "nothing is stored; send the whole input (in some clients: store false)"
# Of items' ids.
PREFIXES = {Kind.REASONING: "rs_", Kind.TEXT: "msg_", Kind.CALL: "fc_"}


def parse_input(values: Values) -> Conversation:
    """Raises HttpError."""
    conversation, given = Conversation(), values["input"]
    if instructions := values["instructions"]:
        conversation.add("system", instructions, "instructions")
    if isinstance(given, str):
        conversation.add("user", given, "input")
    elif isinstance(given, list) and given:
        require_at_most(MAX_PARTS, len(given), "input", "items")
        for at, item in enumerate(given):
            _parse_item(conversation, item, f"input[{at}]")
    else:
        raise bad_value("input", given, "a string, or a list with at least one item")
    return conversation


def _parse_item(conversation: Conversation, item: Any, field: str) -> None:
    match item:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            namespace = item.get("namespace")
            conversation.add_call(call_id, f"{namespace}__{name}" if namespace else name, arguments, field)
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(text)}:
            arguments = json.dumps({CUSTOM_INPUT: text}, ensure_ascii=False)
            conversation.add_call(call_id, name, arguments, field)
        case {"type": "function_call_output" | "custom_tool_call_output", "call_id": str(call_id)}:
            output = parse_text_parts(item.get("output"), f"{field}.output", TEXT_PARTS)
            conversation.add("tool", output, field, tool_call_id=call_id)
        case {"type": "reasoning"}:
            if reasoning := _read_reasoning(item, field):
                conversation.add_reasoning(reasoning, field)
        case {"type": "function_call" | "custom_tool_call" | "function_call_output" | "custom_tool_call_output"}:
            raise bad_value(field, item, "a call with call_id, name and arguments or input, or an output with call_id")
        case {"role": "user" | "system" | "developer" as role} if item.get("type", "message") == "message":
            conversation.add(str(role), parse_text_parts(item.get("content"), f"{field}.content", TEXT_PARTS), field)
        case {"role": "assistant"} if item.get("type", "message") == "message":
            conversation.add_answer(_read_answer(item, field), field)
        case {"type": "message"}:
            raise bad_value(f"{field}.role", item.get("role"), "one of user, assistant, system, developer")
        case {"type": "item_reference", "id": str(name)} if name.startswith(PREFIXES[Kind.REASONING]):
            # Only the reasoning is lost.
            pass
        case {"type": "item_reference"}:
            raise bad_request(field, f"{field} refers to a stored item; {INSTEAD}", "unsupported_field")
        case {"type": "additional_tools"}:
            hint = "clients send it to models whose names begin with gpt-; choose another --served-model-name"
            raise bad_request(field, f"{field} is of type additional_tools, which is not supported; {hint}")
        case _:
            allowed = "a message, a call, an output or reasoning: an object with one of their types"
            raise bad_value(field, item, allowed)


def _read_answer(item: Mapping[str, Any], field: str) -> str:
    """Reads text and refusals: both were said."""
    content = item.get("content")
    if isinstance(content, list):
        content = [_as_text(part) for part in content]
    return parse_text_parts(content, f"{field}.content", TEXT_PARTS)


def _as_text(part: Any) -> Any:
    match part:
        case {"type": "refusal", "refusal": str(text)}:
            return {"type": "output_text", "text": text}
    return part


def _read_reasoning(item: Mapping[str, Any], field: str) -> str:
    if content := item.get("content"):
        return parse_text_parts(content, f"{field}.content", TEXT_PARTS)
    encrypted = item.get("encrypted_content")
    if isinstance(encrypted, str) and encrypted.startswith(REASONING_SIGNATURE):
        try:
            return base64.b64decode(encrypted.removeprefix(REASONING_SIGNATURE), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise bad_value(f"{field}.encrypted_content", encrypted, "as this server sent it") from None
    return ""


def parse_tools(values: Values, default_choice: str) -> OfferedTools:
    """Raises HttpError."""
    offers = Offers()
    for at, tool in enumerate(listed_tools(values)):
        field = f"tools[{at}]"
        match tool:
            case {"type": "function"}:
                offers.add(_function(tool, field), field)
            case {"type": "namespace", "name": str(space), "tools": list(inner)}:
                NAMESPACE.check(tool, field)
                for place, each in enumerate(inner):
                    function = _function(each, f"{field}.tools[{place}]")
                    name = ToolName(str(function.get("name")), space)
                    offers.add({**function, "name": f"{space}__{name.name}"}, f"{field}.tools[{place}]", name)
            case {"type": "custom", "name": str(name)}:
                CUSTOM.check(tool, field)
                if isinstance(given := tool.get("format"), dict) and given.get("type") == "grammar":
                    # A grammar of the input can't hold inside a JSON string.
                    offers.unenforced.append(f"{field}.format")
                offers.add(
                    {"name": name, "description": tool.get("description"), "parameters": CUSTOM_PARAMETERS},
                    field,
                    ToolName(name, is_custom=True),
                )
            case {"type": str(kind)} if _is_hosted(kind):
                offers.left_out.append(kind)
            case {"type": str(kind)}:
                raise bad_value(f"{field}.type", kind, f"function, namespace, custom or one of {', '.join(HOSTED)}")
            case _:
                raise bad_value(field, tool, "an object with a type")
    choice, allowed = _parse_choice(values["tool_choice"], offers)
    return offers.make(choice, default_choice, values["parallel_tool_calls"], "parameters", allowed)


def _function(tool: Any, field: str) -> dict[str, Any]:
    """Returns what the coordinator checks further."""
    if not isinstance(tool, dict) or tool.get("type", "function") != "function":
        raise bad_value(field, tool, "an object of type function")
    given = FUNCTION.read(tool, field)
    return {key: given[key] for key in given if key != "type"}


def _is_hosted(kind: str) -> bool:
    """Types may end with a date."""
    return len(kind) <= MAX_KIND_CHARACTERS and any(kind == each or kind.startswith(f"{each}_2") for each in HOSTED)


def _parse_choice(choice: Any, offers: Offers) -> tuple[str | None, list[str] | None]:
    """Returns the choice, and the tools that it allows (None: all). Raises HttpError."""

    def name_of(given: Any) -> str:
        match given:
            case {"type": "function" | "custom", "name": str(name)}:
                return offers.known_as(ToolName(name, given.get("namespace", "")))
        raise bad_value("tool_choice.tools", given, "tools with a type and a name")

    match choice:
        case None | "none" | "auto" | "required":
            return choice, None
        case {"type": "function" | "custom"}:
            return name_of(choice), None
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": list(tools)} if tools:
            return str(mode), [name_of(each) for each in tools]
        case {"type": str(kind)} if _is_hosted(kind):
            raise bad_request("tool_choice", f"tool_choice is {kind}, a tool that this server can't run")
    raise bad_value("tool_choice", choice, f"one of {', '.join(CHOICES)}, or an object of a tool or allowed_tools")


def parse_format(text: Mapping[str, Any]) -> NamedFormat:
    given, field = TEXT.read(text, "text")["format"], "text.format"
    match given:
        case None | {"type": "text"}:
            return NO_FORMAT
        case {"type": "json_object"}:
            return json_format(field)
        case {"type": "json_schema"}:
            return schema_format(SCHEMA.read(given, field), field)
    raise bad_value(field, given, "an object whose type is text, json_object or json_schema")
