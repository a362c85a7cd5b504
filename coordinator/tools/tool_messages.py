"""Conversations with tool calls, as chat templates take them.

A template that renders no tools renders neither calls nor results: then all three are written into the messages, in the
words of Hermes, and HERMES is the format of the calls. A template that renders tools but drops calls gets these written out.
"""

import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from coordinator.json_text import load_json
from coordinator.tools.call_formats import HERMES, CallFormat, WrittenCall
from coordinator.tools.offered_tools import Tools
from paceline.checks import require
from paceline.errors import InvalidArgument

_PROBE_NAME = "paceline_probe"
_PROBE = {"name": _PROBE_NAME, "description": "", "parameters": {"type": "object", "properties": {}}}
# Template options that show how a template treats chats with tools.
PROBE_TOOLS = {"tools": [{"type": "function", "function": _PROBE}]}
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
        text = render([{"role": "user", "content": "x"}], PROBE_TOOLS)
    except InvalidArgument:
        return False
    return _PROBE_NAME in text


def to_template(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Returns messages for a template that renders tools. Raises InvalidArgument."""
    return list(map(_to_template, _named(messages)))


def with_function_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gives calls the ids `functions.NAME:INDEX`, which some templates write as all that tells the name."""
    calls = [call for each in messages for call in each.get("tool_calls", ())]
    ids = {call["id"]: f"functions.{call['function']['name']}:{at}" for at, call in enumerate(calls)}
    renamed: list[dict[str, Any]] = []
    for message in messages:
        if "tool_calls" in message:
            message = message | {"tool_calls": [call | {"id": ids[call["id"]]} for call in message["tool_calls"]]}
        elif message.get("tool_call_id") in ids:
            message = message | {"tool_call_id": ids[message["tool_call_id"]]}
        renamed.append(message)
    return renamed


def write_calls(message: dict[str, Any], call_format: CallFormat) -> str:
    """Returns the content of a message for a template, and after it its calls as the model writes them."""
    calls = [(each["id"], each["function"]) for each in message["tool_calls"]]
    written = (Call(call_id, each["name"], _as_json(each["arguments"])) for call_id, each in calls)
    return _with_calls(Message(message["role"], message["content"], tuple(written)), call_format)


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
    """Checks each message. Gives calls and results the ids, and results the names, that clients leave out."""
    # The newest calls of each id, of which the first waits for a result; "": those of the newest message.
    waiting: dict[str, deque[Call]] = {}
    num_calls = 0
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
        if message.calls:
            given = [
                replace(each, id=each.id or f"call{num_calls + place:05}") for place, each in enumerate(message.calls)
            ]
            message = replace(message, calls=tuple(given))
            num_calls += len(given)
            for call_id, same in groupby(sorted(given, key=_id_of), _id_of):
                waiting[call_id] = deque(same)
            waiting[""] = deque(given)
        elif is_tool and (calls := waiting.get(message.tool_call_id)):
            # Results of the same id, or without, are in the order of the calls. The last call may have several.
            call = calls.popleft() if len(calls) > 1 else calls[0]
            message = replace(message, tool_call_id=call.id, name=message.name or call.name)
        yield message


def _id_of(call: Call) -> str:
    return call.id


def _to_template(message: Message) -> dict[str, Any]:
    rendered: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        rendered["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": _arguments(call)}}
            for call in message.calls
        ]
    if message.tool_call_id:
        rendered["tool_call_id"] = message.tool_call_id
    if message.name:
        rendered["name"] = message.name
    if message.reasoning:
        rendered["reasoning_content"] = message.reasoning
    return rendered


def _arguments(call: Call) -> dict[str, Any] | str:
    """Returns an object where it can: templates write it as the model did, and text once more as a JSON string."""
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


def _as_json(arguments: dict[str, Any] | str) -> str:
    return arguments if isinstance(arguments, str) else _dump(arguments)
