"""Conversations with tool calls, as chat templates take them.

A template that renders no tools renders neither calls nor results: then all three are written into the messages, in the
words of Hermes, and HERMES is the format of the calls. A template that renders tools but drops calls gets these written out.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from coordinator.json_text import load_json
from coordinator.tools.call_formats import FUNCTION_IDS, HERMES, SHORT_IDS, CallFormat, WrittenCall
from coordinator.tools.offered_tools import Tools
from paceline.checks import require
from paceline.errors import InvalidArgument

_SHORT_ID_CHARACTERS = 9
_SHORT_ID = re.compile("[A-Za-z0-9]{9}")
_PROBE_NAME = "paceline_probe"
_PROBE = {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
_TOOLS_TEXT = """# Tools

You may call one or more of the functions below. Each line within <tools></tools> is the signature of one:
<tools>
{tools}
</tools>

For each call, write a JSON object with the function's name and its arguments within <tool_call></tool_call>:
<tool_call>
{{"name": <name>, "arguments": <object of arguments>}}
</tool_call>"""


@dataclass(frozen=True, slots=True)
class Call:
    id: str
    name: str
    # JSON, as the client sent it.
    arguments: str


@dataclass(frozen=True, slots=True)
class Message:
    """`calls`, `reasoning`: of the assistant. `tool_call_id`: the call that a tool's message answers; `name`: its tool.

    is_prefix: the answer continues this message, which is the assistant's and the last.
    """

    role: str
    content: str
    calls: tuple[Call, ...] = ()
    tool_call_id: str = ""
    name: str = ""
    reasoning: str = ""
    is_prefix: bool = False


def renders_tools(render: Callable[[list[dict[str, Any]], dict[str, Any]], str]) -> bool:
    """Returns whether a chat template tells the model of its tools. `render`: takes messages and template options."""
    try:
        text = render([{"role": "user", "content": "x"}], {"tools": [{"type": "function", "function": _PROBE}]})
    except InvalidArgument:
        return False
    return _PROBE_NAME in text


def to_template(
    messages: Sequence[Message], call_format: CallFormat, writes_calls: bool = False
) -> list[dict[str, Any]]:
    """Returns messages for a template that renders tools. `writes_calls`: as part of the content. Raises InvalidArgument."""
    named = list(_named(messages))
    ids = _template_ids(named, call_format)
    if writes_calls:
        named = [replace(each, content=_with_calls(each, call_format), calls=()) for each in named]
    return [_to_template(each, ids, call_format.takes_text) for each in named]


def write_out(messages: Sequence[Message], tools: Tools | None) -> list[dict[str, Any]]:
    """Returns messages for a template without tools: a system message describes them."""
    written: list[dict[str, Any]] = []
    if tools is not None:
        lines = "\n".join(_dump(each) for each in tools.for_template)
        written.append({"role": "system", "content": _TOOLS_TEXT.format(tools=lines)})
    # Results that follow one another are one message of the user.
    for at, (is_result, group) in enumerate(groupby(_named(messages), lambda each: each.role == "tool")):
        if is_result:
            results = (f"<tool_response>\n{each.content}\n</tool_response>" for each in group)
            written.append({"role": "user", "content": "\n".join(results)})
            continue
        for place, message in enumerate(group):
            if at == place == 0 and written and message.role == "system":
                written[0]["content"] = f"{message.content}\n\n{written[0]['content']}"
            else:
                written.append({"role": message.role, "content": _with_calls(message, HERMES)})
    return written


def _named(messages: Sequence[Message]) -> Iterator[Message]:
    """Checks each message, and gives a result the name of its tool, which clients leave out."""
    names: dict[str, str] = {}
    for at, message in enumerate(messages):
        field = f"chat.messages[{at}]"
        is_assistant, is_tool = message.role == "assistant", message.role == "tool"
        require(
            is_assistant or not message.calls, f"{field}.tool_calls", message.role, "left out unless of an assistant"
        )
        require(
            is_assistant or not message.reasoning, f"{field}.reasoning", message.role, "left out unless of an assistant"
        )
        require(
            is_tool or not message.tool_call_id,
            f"{field}.tool_call_id",
            message.tool_call_id,
            "left out unless of a tool",
        )
        names |= {call.id: call.name for call in message.calls}
        yield replace(message, name=message.name or names.get(message.tool_call_id, "")) if is_tool else message


def _to_template(message: Message, ids: dict[str, str], takes_text: bool) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        rendered["tool_calls"] = [
            {
                "id": ids[call.id],
                "type": "function",
                "function": {"name": call.name, "arguments": _arguments(call, takes_text)},
            }
            for call in message.calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = ids.get(message.tool_call_id, message.tool_call_id)
    if message.name:
        rendered["name"] = message.name
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    return rendered


def _template_ids(messages: Sequence[Message], call_format: CallFormat) -> dict[str, str]:
    """Returns the ids that the template takes, by those of the client."""
    given = [call.id for each in messages for call in each.calls] + [
        each.tool_call_id for each in messages if each.tool_call_id
    ]
    if call_format.ids == SHORT_IDS:
        return {each: _short_id(each) for each in given}
    ids = {each: each for each in given}
    if call_format.ids == FUNCTION_IDS:
        calls = [call for each in messages for call in each.calls]
        ids |= {call.id: f"functions.{call.name}:{at}" for at, call in enumerate(calls)}
    return ids


def _arguments(call: Call, takes_text: bool = False) -> dict[str, Any] | str:
    """Returns an object where it can: templates write it as the model did, and text once more as a JSON string."""
    if takes_text:
        return call.arguments if call.arguments.strip() not in ("", "null") else "{}"
    # Clients send a call without arguments so, too.
    if call.arguments.strip() in ("", "null"):
        return {}
    parsed = load_json(call.arguments)
    return parsed if isinstance(parsed, dict) else call.arguments


def _with_calls(message: Message, call_format: CallFormat) -> str:
    """Returns a message's content, and after it its calls as the model writes them."""
    if not message.calls:
        return message.content
    written = call_format.write([WrittenCall(each.name, _arguments(each), each.id) for each in message.calls])
    return f"{message.content}{call_format.text_separator}{written}" if message.content else written


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID_CHARACTERS]
