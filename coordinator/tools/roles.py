"""Fits the roles of a conversation to the model's chat template.

Agents send several system messages, also in mid-chat, and user messages in a row. What the template renders stays as it is:
a system message that moves to the front would change all that is cached.
"""

from itertools import dropwhile, groupby
from typing import Any

from coordinator.tools.template_probes import Messages, TemplateProbes, call, result, say
from paceline.chats import ASSISTANT, SYSTEM, TOOL, USER

_REMINDER = "<system-reminder>\n{}\n</system-reminder>"
_NOTHING = {"role": USER, "content": ""}


class Roles:
    def __init__(self, probes: TemplateProbes) -> None:
        self._probes = probes

    def fit_systems(self, messages: Messages) -> tuple[Messages, Messages]:
        """Returns the leading system messages and the others, of which those that the template would refuse or drop are joined or
        become a user's."""
        if any(map(_is_empty_system, messages)) and not self._takes_empty_system:
            messages = [each for each in messages if not _is_empty_system(each)]
        others = list(dropwhile(lambda each: each["role"] == SYSTEM, messages))
        leading = messages[: len(messages) - len(others)]
        if len(leading) > 1 and not self._takes(SYSTEM, SYSTEM, USER):
            leading = _joined(leading, SYSTEM)
        fitted: Messages = []
        before = ""
        for at, each in enumerate(others):
            after = next((other["role"] for other in others[at:] if other["role"] != SYSTEM), "")
            first = [SYSTEM] * bool(leading)
            is_taken = each["role"] != SYSTEM or (
                self._takes_late_system(before, first)
                and (before != USER or after != USER or self._takes_between(first))
            )
            if not is_taken:
                each = each | {"role": USER, "content": _REMINDER.format(each["content"])}
            elif each["role"] != SYSTEM:
                before = each["role"]
            fitted.append(each)
        return leading, fitted

    def fit_turns(self, messages: Messages, has_system: bool) -> Messages:
        """Joins neighbors that the template would refuse or drop, and lets a user begin. `messages`: without leading systems."""
        if any(map(_is_empty, messages)) and not self._takes_empty_answers:
            messages = [each for each in messages if not _is_empty(each)] or messages
        for role, chat in ((USER, (USER, USER, ASSISTANT, USER)), (ASSISTANT, (USER, ASSISTANT, ASSISTANT, USER))):
            joined = _joined(messages, role)
            if len(joined) < len(messages) and not self._takes(*chat):
                messages = joined
        return messages if self._takes_beginning(messages, has_system) else [_NOTHING, *messages]

    def place_system(self, messages: Messages) -> Messages:
        """Puts a system message that the template refuses or drops before a user's words, as such models learned it."""
        if not messages or messages[0]["role"] != SYSTEM or _is_empty_system(messages[0]):
            return messages
        system, *others = messages
        if not self._takes(SYSTEM, USER):
            # A user's message, where the assistant speaks first.
            return [*_joined([system | {"role": USER}, *others[:1]], USER), *others[1:]]
        if not others or others[-1]["role"] == USER or self._takes_system_after_answer:
            return messages
        # Mistral's put it before the last user's words, but only while these are the last.
        last = max((at for at, each in enumerate(others) if each["role"] == USER), default=None)
        if last is None:
            return [system | {"role": USER}, *others]
        return [*others[:last], *_joined([system | {"role": USER}, others[last]], USER), *others[last + 1 :]]

    def _takes_late_system(self, before: str, first: list[str]) -> bool:
        """`before`: the role of the message before it. `first`: the chat's first system message, if it has one."""
        if before != TOOL:
            turn = (USER, ASSISTANT, SYSTEM) if before == ASSISTANT else (USER, SYSTEM, ASSISTANT)
            return self._takes(*first, *turn, *turn, USER)
        chat = [*(say(each, 9) for each in first), say(USER, 0), call(0), result(0), say(ASSISTANT, 1), say(USER, 2)]
        if not self._probes.takes(chat):
            # The result will be a user's message.
            return self._takes_late_system(USER, first)
        return self._probes.takes([*chat[:-2], say(SYSTEM, 3), *chat[-2:]])

    def _takes_between(self, first: list[str]) -> bool:
        """Returns whether a system message may stand between a user's, which some templates still count as neighbors."""
        return self._takes(*first, USER, SYSTEM, USER, ASSISTANT, USER)

    @property
    def _takes_empty_answers(self) -> bool:
        chat = [say(USER, 0), {"role": ASSISTANT, "content": ""}, say(USER, 1), say(ASSISTANT, 2), say(USER, 3)]
        return self._probes.takes(chat)

    @property
    def _takes_empty_system(self) -> bool:
        return self._probes.takes([{"role": SYSTEM, "content": ""}, say(USER, 0)])

    @property
    def _takes_system_after_answer(self) -> bool:
        return self._takes(SYSTEM, USER, ASSISTANT)

    def _takes_beginning(self, messages: Messages, has_system: bool) -> bool:
        """Returns whether a chat may begin as this one does, or does not become better by a user's message."""
        has_user = any(each["role"] == USER for each in messages)
        first = messages[0] if messages else None
        if first is not None and (first["role"] == USER or (first.get("tool_calls") and has_user)):
            return True
        before, after = [say(SYSTEM, 8)] * has_system, [say(USER, 9)] * has_user
        if first is not None and first["role"] == TOOL:
            after = [result(5), say(ASSISTANT, 1), *after]
        elif first is not None:
            after = [*([call(0), result(0)] if first.get("tool_calls") else []), say(first["role"], 1), *after]
        return self._probes.takes([*before, *after]) or not self._probes.takes([*before, _NOTHING, *after])

    def _takes(self, *roles: str) -> bool:
        """Returns whether the contents of all messages of such a chat come out."""
        return self._probes.takes([say(role, at) for at, role in enumerate(roles)])


def _is_empty_system(message: dict[str, Any]) -> bool:
    return message["role"] == SYSTEM and not message["content"].strip()


def _is_empty(message: dict[str, Any]) -> bool:
    is_answer = message["role"] == ASSISTANT and not message.get("tool_calls")
    return is_answer and not message["content"].strip() and not message.get("reasoning_content")


def _joined(messages: Messages, role: str) -> Messages:
    """Joins neighbors of this role by a blank line. A message with calls has none."""
    joined: Messages = []
    for is_role, group in groupby(messages, lambda each: each["role"] == role and not each.get("tool_calls")):
        first, *others = group
        if is_role and others:
            texts = (each["content"] for each in (first, *others))
            joined.append(first | {"content": "\n\n".join(each for each in texts if each)})
        else:
            joined += first, *others
    return joined
