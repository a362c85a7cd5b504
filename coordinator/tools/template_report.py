"""What a chat template was found to do, for people: roles, tools, calls and reasoning."""

import json
from collections.abc import Iterator
from typing import Any

from coordinator.chat_template import NEXT_TURN
from coordinator.tokenizer import Tokenizer
from coordinator.tools.call_formats import CallFormat
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from coordinator.tools.tool_messages import Call, Message, renders_tools
from paceline.chats import ASSISTANT, ROLES, SYSTEM, USER
from paceline.checks import require
from paceline.errors import InvalidArgument

_ROLES = {
    "a system message": (SYSTEM, USER),
    "a later system message": (USER, SYSTEM, USER),
    "users in a row": (USER, USER),
    "answers": (USER, ASSISTANT),
}


def describe_template(tokenizer: Tokenizer) -> Iterator[tuple[str, str]]:
    """Yields what was found, as names and texts of one or more lines."""
    if tokenizer.chat_template is None:
        yield "chat template", "none: the model takes text only"
        return
    takes = [name for name, roles in _ROLES.items() if _renders(tokenizer, roles)]
    yield "renders", ", ".join(takes) or "nothing"
    yield "rewritten", ", ".join(name for name in _ROLES if name not in takes) or "nothing"
    yield "reasoning", _reasoning_of(tokenizer)
    chats = Chats(tokenizer)
    if not renders_tools(tokenizer.render_chat):
        yield "tools", "described in a system message, as the template renders none"
    else:
        yield "tools", "rendered by the template"
    if chats.answer_format is not None:
        yield "calls", chats.answer_format.description
        return
    try:
        yield from _describe_calls(chats.call_format)
    except InvalidArgument as error:
        yield "calls", f"refused: {error}"


def summary_of(tokenizer: Tokenizer, chats: Chats) -> str:
    """Returns in one line how the template writes reasoning and calls."""
    if tokenizer.chat_template is None:
        return "none: the model takes text only"
    reasoning = f"reasoning {_reasoning_of(tokenizer)}"
    if chats.answer_format is not None:
        return f"{reasoning}; calls {chats.answer_format.description}"
    try:
        return f"{reasoning}; calls as {chats.call_format.name}"
    except InvalidArgument as error:
        return " ".join(f"{reasoning}; tools {error.problem}".split())


def _reasoning_of(tokenizer: Tokenizer) -> str:
    without, with_tools = (
        "none" if marks is None else f"between {marks.begin} and {marks.end}"
        for marks in (tokenizer.reasoning_marks, tokenizer.reasoning_marks_with_tools)
    )
    return without if without == with_tools else f"{without}, with tools {with_tools}"


def _describe_calls(found: CallFormat) -> Iterator[tuple[str, str]]:
    yield "calls", found.name
    yield "arguments", found.arguments.description
    texts = {
        "before all": found.calls_begin, "before a name": found.head, "after a name": found.middle, "after arguments": found.tail,
        "between calls": found.separator, "after all": found.calls_end, "after text": found.text_separator,
    }  # fmt: skip
    yield "texts", "\n".join(f"{name}: {json.dumps(text, ensure_ascii=False)}" for name, text in texts.items() if text)
    yield "calls in a message", "one" if found.is_single else "any number"
    yield "example", found.example


def render_conversation(tokenizer: Tokenizer, conversation: Any) -> str:
    """Returns the prompt of OpenAI's messages, or of an object with messages and maybe tools. Raises InvalidArgument."""
    given = conversation if isinstance(conversation, dict) else {"messages": conversation}
    require(
        isinstance(given.get("messages"), list) and bool(given["messages"]),
        "messages",
        given.get("messages"),
        "a list of messages",
    )
    messages = [_message(each, f"messages[{at}]") for at, each in enumerate(given["messages"])]
    tools = Tools.parse(json.dumps(given["tools"]), given.get("tool_choice", "auto")) if given.get("tools") else None
    written, options = Chats(tokenizer).template_input(messages, tools)
    return tokenizer.render_chat(written, {**options, **NEXT_TURN})


def _message(given: Any, field: str) -> Message:
    require(
        isinstance(given, dict) and given.get("role") in ROLES, f"{field}.role", given, f"one of {', '.join(ROLES)}"
    )
    content = given.get("content") or ""
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    calls = []
    for at, call in enumerate(given.get("tool_calls") or []):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict):
            raise InvalidArgument.of_value(
                f"{field}.tool_calls[{at}].function", call, "an object with name and arguments"
            )
        arguments = function.get("arguments", "{}")
        calls.append(
            Call(
                str(call.get("id", at)),
                str(function.get("name", "")),
                arguments if isinstance(arguments, str) else json.dumps(arguments),
            )
        )
    return Message(
        ROLES[given["role"]],
        str(content),
        tuple(calls),
        str(given.get("tool_call_id") or ""),
        str(given.get("name") or ""),
        str(given.get("reasoning_content") or ""),
    )


def _renders(tokenizer: Tokenizer, roles: tuple[str, ...]) -> bool:
    chat = [{"role": role, "content": f"probe{at}"} for at, role in enumerate(roles)]
    try:
        text = tokenizer.render_chat(chat, {})
    except InvalidArgument:
        return False
    return all(each["content"] in text for each in chat)
