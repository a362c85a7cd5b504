"""Fits the roles of a conversation to the model's chat template.

Agents send several system messages, also in mid-chat, and user messages in a row. What the template renders stays as it is:
a system message that moves to the front would change all that is cached.
"""

from collections.abc import Callable
from functools import cached_property
from itertools import dropwhile, groupby
from typing import Any

from paceline.chats import ASSISTANT, SYSTEM, USER
from paceline.errors import InvalidArgument

Messages = list[dict[str, Any]]
_REMINDER = "<system-reminder>\n{}\n</system-reminder>"


class Roles:
    def __init__(self, render: Callable[[Messages, dict[str, Any]], str]) -> None:
        """`render`: takes messages and template options, and raises InvalidArgument."""
        self._render = render

    def fit(self, messages: Messages) -> Messages:
        """Joins or rewrites the messages that the template would refuse or drop."""
        others = list(dropwhile(lambda each: each["role"] == SYSTEM, messages))
        leading = messages[: len(messages) - len(others)]
        if len(leading) > 1 and not self._takes_two_systems:
            leading = _joined(leading, SYSTEM)
        if any(each["role"] == SYSTEM for each in others) and not self._takes_late_systems:
            others = [_as_reminder(each) if each["role"] == SYSTEM else each for each in others]
        joined = _joined(others, USER)
        if len(joined) < len(others) and not self._takes_two_users:
            others = joined
        return [*leading, *others]

    def place_system(self, messages: Messages) -> Messages:
        """Puts a system message that the template refuses or drops before the first user's words, as such models learned it."""
        if not messages or messages[0]["role"] != SYSTEM or self._takes_system:
            return messages
        system, *others = messages
        # A user's message, where the assistant speaks first.
        return [*_joined([system | {"role": USER}, *others[:1]], USER), *others[1:]]

    @cached_property
    def _takes_system(self) -> bool:
        return self._renders(SYSTEM, USER)

    @cached_property
    def _takes_two_systems(self) -> bool:
        return self._renders(SYSTEM, SYSTEM, USER)

    @cached_property
    def _takes_late_systems(self) -> bool:
        return self._renders(USER, SYSTEM, ASSISTANT, SYSTEM, USER, SYSTEM)

    @cached_property
    def _takes_two_users(self) -> bool:
        return self._renders(USER, USER, ASSISTANT, USER)

    def _renders(self, *roles: str) -> bool:
        """Returns whether the contents of all messages of such a chat come out."""
        chat = [{"role": role, "content": f"probe{at}"} for at, role in enumerate(roles)]
        try:
            text = self._render(chat, {})
        except InvalidArgument:
            return False
        return all(each["content"] in text for each in chat)


def _as_reminder(message: dict[str, Any]) -> dict[str, Any]:
    return message | {"role": USER, "content": _REMINDER.format(message["content"])}


def _joined(messages: Messages, role: str) -> Messages:
    """Joins neighbors of this role by a blank line."""
    joined: Messages = []
    for is_role, group in groupby(messages, lambda each: each["role"] == role):
        first, *others = group
        if is_role and others:
            joined.append(first | {"content": "\n\n".join(each["content"] for each in (first, *others))})
        else:
            joined += first, *others
    return joined
