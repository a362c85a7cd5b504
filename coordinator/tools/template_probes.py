"""Asks a chat template, with short chats, what it renders."""

import json
import re
from collections.abc import Callable
from typing import Any

from paceline.chats import ASSISTANT, TOOL, USER
from paceline.errors import InvalidArgument

Messages = list[dict[str, Any]]
# A template that demands ids of nine letters and digits takes these.
_ID = "paceline{}"
CALL_NAME, ARGUMENT = "paceline_call", "paceline_argument"
# A numbered word of a probe. What is around it, a template may escape or trim.
_WORD = re.compile(r"[a-z_]+\d+")


class TemplateProbes:
    """Answers each question once."""

    def __init__(self, render: Callable[[Messages], str]) -> None:
        """`render`: raises InvalidArgument."""
        self._render = render
        self._answers: dict[str, bool] = {}

    def text(self, chat: Messages) -> str:
        """Returns the rendered chat, or nothing if the template refuses it."""
        try:
            return self._render(chat)
        except InvalidArgument:
            return ""

    def takes(self, chat: Messages) -> bool:
        """Returns whether every content, call and argument of a chat comes out."""
        question = json.dumps(chat)
        if question not in self._answers:
            text = self.text(chat)
            self._answers[question] = bool(text) and all(each in text for each in _expected(chat))
        return self._answers[question]


def say(role: str, at: int) -> dict[str, Any]:
    """Returns a message; `at` tells it from others."""
    return {"role": role, "content": f"probe{at}"}


def call(*numbers: int, content: str = "") -> dict[str, Any]:
    """Returns a message with calls of these numbers."""
    calls = [
        {
            "id": _ID.format(at),
            "type": "function",
            "function": {"name": f"{CALL_NAME}{at}", "arguments": {ARGUMENT: f"value{at}"}},
        }
        for at in numbers
    ]
    return {"role": ASSISTANT, "content": content, "tool_calls": calls}


def result(at: int) -> dict[str, Any]:
    """Returns the result of the call of this number."""
    return {"role": TOOL, "content": f"result{at}", "tool_call_id": _ID.format(at), "name": f"{CALL_NAME}{at}"}


def around(*messages: dict[str, Any]) -> Messages:
    """Puts messages into a chat: after a user's, before an answer and another user's."""
    return [say(USER, 90), *messages, say(ASSISTANT, 91), say(USER, 92)]


def _expected(chat: Messages) -> list[str]:
    """Returns the numbered words of a chat's contents, names and arguments."""
    written = [each["content"] for each in chat]
    for message in chat:
        for each in message.get("tool_calls", ()):
            arguments = each["function"]["arguments"]
            written += [each["function"]["name"], arguments if isinstance(arguments, str) else json.dumps(arguments)]
    return _WORD.findall(" ".join(written))
