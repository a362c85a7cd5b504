"""Fits calls and their results to the model's chat template.

Templates refuse or drop what agents send: text beside a call, several calls in a message, arguments that are no object, results
apart from their call. What the template renders stays as it is. The rest is moved, split or written as text, always in the same way, so
that a conversation that grows keeps its cached beginning.
"""

import hashlib
import json
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, NamedTuple

from coordinator.json_text import load_json
from coordinator.tools.template_probes import CALL_NAME, Messages, TemplateProbes, around, call, result, say
from paceline.chats import ASSISTANT, SYSTEM, TOOL, USER

Message = dict[str, Any]
_RESULT = "<tool_response>\n{}\n</tool_response>"
# The field of arguments that are no object, where a template takes nothing else.
_WHOLE = "arguments"
_CUT = '{"paceline_key": "paceline_cut'
_SHORT_ID_CHARACTERS = 9
_LONG_ID = "call_of_paceline_0"
# What jinja makes of signs where a template joins texts to one that `safe` marks.
_ESCAPED = re.compile(r"&(?:#\d+|lt|gt|quot|amp);")
_NOTHING: Message = {"role": USER, "content": ""}


class _Writing(NamedTuple):
    """Which messages become text."""

    calls: bool = False
    results: bool = False


class ToolTurns:
    def __init__(self, probes: TemplateProbes, write: Callable[[Message], str]) -> None:
        """`write`: returns a message's text, and after it its calls as the model writes them."""
        self._probes, self._write = probes, write

    def fit(self, messages: Messages, has_system: bool) -> Messages:
        """Returns messages of which the template renders all, as far as it can be helped. Leading systems are not among them."""
        if not any(_has_calls(each) or each["role"] == TOOL for each in messages):
            return messages
        messages = self._with_results_placed(list(map(self._spelled, messages)), has_system)
        answered = _answered(messages)
        fitted: Messages = []
        at = 0
        while at < len(messages):
            message, is_answered = messages[at], at in answered
            at += 1
            if not _has_calls(message):
                self._add(fitted, message)
                continue
            results = list(takewhile(lambda each: each["role"] == TOOL, messages[at:]))
            at += len(results)
            if not fitted and not self._takes_call_first(has_system):
                fitted.append(_NOTHING)
            after = messages[at] if at < len(messages) else None
            self._add_calls(fitted, message, results, is_answered or self._takes_unanswered(after))
        return fitted

    def _add(self, fitted: Messages, message: Message) -> None:
        """Adds a message without calls. Where a template demands an answer between a result and a user, it is a silent one."""
        is_after_result = message["role"] == USER and bool(fitted) and fitted[-1]["role"] == TOOL
        if is_after_result and not self._takes_user_after_result:
            fitted.append(self._silence)
        fitted.append(message)

    def _add_calls(self, fitted: Messages, message: Message, results: Messages, may_be_unanswered: bool) -> None:
        if not results and not may_be_unanswered:
            self._add(fitted, self._as_text(message))
            return
        if len(message["tool_calls"]) > 1 and not self._takes_together(message, results):
            self._add_each(fitted, message, results, may_be_unanswered)
            return
        before = fitted[-1] if fitted else None
        if before is not None and _is_answer(before) and not self._takes_call_after_answer:
            message = before | message | {"content": _joined(before["content"], message["content"])}
            fitted.pop()
        fitted += self._with_text(message, results)

    def _with_text(self, message: Message, results: Messages) -> Messages:
        """Returns a message with calls and its results, with nothing of the text beside the calls lost."""
        if message["content"] and self._beside != "kept":
            if message["content"].strip():
                return _BESIDE[self._beside](self, message, results)
            message = message | {"content": ""}
        return self._written(self._writing, [message, *results])

    def _add_each(self, fitted: Messages, message: Message, results: Messages, may_be_unanswered: bool) -> None:
        """Makes of several calls as many messages, each with its results."""
        calls = message["tool_calls"]
        num_left = Counter(each["id"] for each in calls)
        answers: dict[str, deque[Message]] = {}
        for each in results:
            answers.setdefault(each.get("tool_call_id", ""), deque()).append(each)
        one = message
        for each in calls:
            own = answers.get(each["id"], deque())
            num_left[each["id"]] -= 1
            # Calls of the same id have their results in order.
            num_own = min(1, len(own)) if num_left[each["id"]] else len(own)
            taken = [own.popleft() for _ in range(num_own)]
            self._add_calls(fitted, one | {"tool_calls": [each]}, taken, may_be_unanswered)
            one = {"role": ASSISTANT, "content": ""}
        fitted += chain.from_iterable(answers.values())

    def _with_results_placed(self, messages: Messages, has_system: bool) -> Messages:
        """Moves results to their calls, and makes a user's messages of those without, if the template does not take them."""
        placed: Messages = []
        # The index of the newest message that calls each id, and the results that move there.
        callers: dict[str, int] = {}
        moved: dict[int, Messages] = {}
        for message in messages:
            if message["role"] != TOOL:
                callers |= {each["id"]: len(placed) for each in message.get("tool_calls", ())}
                placed.append(message)
                continue
            caller = callers.get(message.get("tool_call_id", ""))
            if caller is None:
                before = placed[-1] if placed else None
                is_taken = self._takes_without_call(before, message, has_system)
                placed.append(message if is_taken else _result_as_text([message]))
                continue
            later = (placed[at] for at in range(caller + 1, len(placed)))
            between = next((each for each in later if each["role"] != TOOL), None)
            if between is None or self._takes_apart(between):
                placed.append(message)
            else:
                moved.setdefault(caller, []).append(message)
        return _after_others(placed, moved)

    def _spelled(self, message: Message) -> Message:
        """Returns a message with arguments and ids as the template takes them."""
        spelled = message
        if "tool_call_id" in message:
            spelled = spelled | {"tool_call_id": self._id(message["tool_call_id"])}
        if _has_calls(message):
            calls = [
                each
                | {
                    "id": self._id(each["id"]),
                    "function": each["function"] | {"arguments": self._arguments(each["function"]["arguments"])},
                }
                for each in message["tool_calls"]
            ]
            spelled = spelled | {"tool_calls": calls}
        return spelled

    def _id(self, call_id: str) -> str:
        if self._takes_long_ids or (len(call_id) == _SHORT_ID_CHARACTERS and call_id.isascii() and call_id.isalnum()):
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID_CHARACTERS]

    def _arguments(self, arguments: dict[str, Any] | str) -> dict[str, Any] | str:
        if isinstance(arguments, str):
            if self._takes_cut_arguments:
                return arguments
            parsed = load_json(arguments)
            arguments = {_WHOLE: arguments if parsed is None else parsed}
        return json.dumps(arguments, ensure_ascii=False) if self._wants_text else arguments

    def _as_text(self, message: Message) -> Message:
        """Writes a message's calls into its content."""
        if not _has_calls(message):
            return message
        return {key: each for key, each in message.items() if key != "tool_calls"} | {"content": self._write(message)}

    def _written(self, writing: _Writing, messages: Sequence[Message]) -> Messages:
        """Writes a call, or its results, or both as text."""
        message, *results = messages
        written = [self._as_text(message) if writing.calls else message]
        if results and writing.results:
            return [*written, _result_as_text(results)]
        return [*written, *results]

    @cached_property
    def _wants_text(self) -> bool:
        """Returns whether arguments must be JSON text: the template refuses an object, prints it as Python does, or escapes it."""
        chat = around(call(0), result(0))
        text = self._probes.text(chat)
        arguments = chat[1]["tool_calls"][0]["function"]["arguments"]
        is_plain = repr(arguments) not in text and not _ESCAPED.search(text)
        if f"{CALL_NAME}0" in text and "value0" in text and is_plain:
            return False
        return json.dumps(arguments) in self._probes.text(_with_arguments(chat, json.dumps(arguments)))

    @cached_property
    def _takes_cut_arguments(self) -> bool:
        text = self._probes.text(_with_arguments(around(call(0), result(0)), _CUT))
        return "paceline_key" in text and "paceline_cut" in text

    @cached_property
    def _takes_long_ids(self) -> bool:
        chat = around(*self._written(self._writing, [self._probe_call(0), result(0)]))
        for each in chat:
            if "tool_call_id" in each:
                each["tool_call_id"] = _LONG_ID
            for one in each.get("tool_calls", ()):
                one["id"] = _LONG_ID
        return self._probes.takes(chat) or not self._takes(self._probe_call(0), result(0))

    @cached_property
    def _writing(self) -> _Writing:
        ways = (_Writing(), _Writing(calls=True), _Writing(results=True), _Writing(calls=True, results=True))
        return next(
            (way for way in ways if self._takes(*self._written(way, [self._probe_call(0), result(0)]))), ways[0]
        )

    @cached_property
    def _takes_parallel(self) -> bool:
        together = self._written(self._writing, [self._probe_call(0, 1), result(0), result(1)])
        return self._takes(*together) or not self._takes(*self._pair(0), *self._pair(1))

    def _takes_together(self, message: Message, results: Messages) -> bool:
        answered = {each.get("tool_call_id") for each in results}
        is_partly_answered = bool(results) and any(each["id"] not in answered for each in message["tool_calls"])
        return self._takes_parallel and (not is_partly_answered or self._takes_partly_answered)

    @cached_property
    def _takes_partly_answered(self) -> bool:
        return self._takes(*self._written(self._writing, [self._probe_call(0, 1), result(0)]))

    @cached_property
    def _beside(self) -> str:
        """Returns what becomes of text beside a call."""
        message = self._probe_call(0, content="beside0")
        kept = self._written(self._writing, [message, result(0)])
        if self._takes_again(kept):
            return "kept"
        ways = (name for name, way in _BESIDE.items() if self._takes_again(way(self, message, [result(0)])))
        return next(ways, "kept")

    def _takes_again(self, turn: Messages) -> bool:
        """Returns whether the template takes a turn of call 0, also after another call: some drop text from there on."""
        is_taken_later = self._takes(*self._pair(1), *turn) or not self._takes(*self._pair(1), *self._pair(0))
        return self._takes(*turn) and is_taken_later

    def _takes_call_first(self, has_system: bool) -> bool:
        before = [say(SYSTEM, 9)] * has_system
        after = [*self._pair(0), say(ASSISTANT, 0), say(USER, 1)]
        return self._probes.takes([*before, *after]) or not self._probes.takes([*before, _NOTHING, *after])

    @cached_property
    def _takes_call_after_answer(self) -> bool:
        mended = self._with_text(self._probe_call(0, content="beside0"), [result(0)])
        return self._takes(say(ASSISTANT, 0), *self._pair(0)) or not self._takes(*mended)

    @property
    def _takes_user_after_result(self) -> bool:
        return self._takes(*self._pair(0), say(USER, 0)) or not self._takes(*self._pair(0), self._silence, say(USER, 0))

    @cached_property
    def _silence(self) -> Message:
        """Returns an assistant's message that says nothing."""
        silences: Messages = [{"role": ASSISTANT, "content": each} for each in ("", "...")]
        taken = (each for each in silences if self._takes(*self._pair(0), each, say(USER, 0)))
        return next(taken, silences[0])

    def _takes_unanswered(self, after: Message | None) -> bool:
        """`after`: the message behind the call, if there is one."""
        following: Messages = [] if after is None else around(*([say(USER, 0)] if after["role"] == USER else []))[1:]
        message = self._probe_call(0)
        chat = [say(USER, 90), message, *following]
        return self._probes.takes(chat) or not self._probes.takes([chat[0], self._as_text(message), *following])

    def _takes_without_call(self, before: Message | None, message: Message, has_system: bool) -> bool:
        """`before`: the message before the result."""
        answer = {key: each for key, each in result(5).items() if key in message}
        if before is None:
            return self._probes.takes([*[say(SYSTEM, 9)] * has_system, answer, *around()[1:]])
        if before["role"] == TOOL:
            return self._takes(*self._pair(0), answer)
        return self._takes(*([] if before["role"] == USER else [say(before["role"], 0)]), answer)

    def _takes_apart(self, between: Message) -> bool:
        """`between`: the first message between a call and its result."""
        if _has_calls(between):
            return self._takes(self._probe_call(0), self._probe_call(1), result(0), result(1))
        return self._takes(self._probe_call(0), say(between["role"], 0), result(0))

    def _takes(self, *messages: Message) -> bool:
        return self._probes.takes(around(*messages))

    def _probe_call(self, *numbers: int, content: str = "") -> Message:
        message = call(*numbers, content=content)
        for each in message["tool_calls"]:
            each["function"]["arguments"] = self._arguments(each["function"]["arguments"])
        return message

    def _pair(self, number: int) -> Messages:
        return self._written(self._writing, [self._probe_call(number), result(number)])


def _apart(self: ToolTurns, message: Message, results: Messages) -> Messages:
    return [_answer(message), *self._written(self._writing, [message | {"content": ""}, *results])]


def _apart_by_user(self: ToolTurns, message: Message, results: Messages) -> Messages:
    return [_answer(message), _NOTHING, *self._written(self._writing, [message | {"content": ""}, *results])]


def _call_as_text(self: ToolTurns, message: Message, results: Messages) -> Messages:
    return self._written(_Writing(calls=True, results=self._writing.results), [message, *results])


def _all_as_text(self: ToolTurns, message: Message, results: Messages) -> Messages:
    return self._written(_Writing(calls=True, results=True), [message, *results])


# What becomes of text beside a call: the first that the template takes.
_BESIDE: dict[str, Callable[[ToolTurns, Message, Messages], Messages]] = {
    "apart": _apart, "apart by a user": _apart_by_user, "call as text": _call_as_text, "all as text": _all_as_text,
}  # fmt: skip


def _answer(message: Message) -> Message:
    return {"role": ASSISTANT, "content": message["content"]}


def _result_as_text(results: Messages) -> Message:
    return {"role": USER, "content": "\n".join(_RESULT.format(each["content"]) for each in results)}


def _after_others(messages: Messages, moved: dict[int, Messages]) -> Messages:
    """Puts results behind the message of their index and the results that follow it."""
    placed: Messages = []
    waiting: Messages = []
    for at, message in enumerate(messages):
        if message["role"] != TOOL:
            placed += waiting
            waiting = []
        placed.append(message)
        waiting = moved.get(at, waiting)
    return placed + waiting


def _answered(messages: Messages) -> set[int]:
    """Returns the indices of the messages whose calls have a result."""
    callers: dict[str, int] = {}
    answered: set[int] = set()
    for at, message in enumerate(messages):
        callers |= {each["id"]: at for each in message.get("tool_calls", ())}
        if message["role"] == TOOL and (caller := callers.get(message.get("tool_call_id", ""))) is not None:
            answered.add(caller)
    return answered


def _has_calls(message: Message) -> bool:
    return bool(message.get("tool_calls"))


def _is_answer(message: Message) -> bool:
    return message["role"] == ASSISTANT and not _has_calls(message)


def _joined(*texts: str) -> str:
    return "\n\n".join(each for each in texts if each.strip())


def _with_arguments(chat: Messages, arguments: str) -> Messages:
    for message in chat:
        for each in message.get("tool_calls", ()):
            each["function"]["arguments"] = arguments
    return chat
