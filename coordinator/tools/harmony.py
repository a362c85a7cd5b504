"""Harmony, gpt-oss's answers: messages, each with a channel and maybe a recipient in its header.

    <|channel|>analysis<|message|>…<|end|><|start|>assistant            reasoning
    <|channel|>commentary<|message|>…<|end|><|start|>assistant          content: what the model says before it calls
    <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|channel|>final<|message|>…<|return|>                              content

The prompt has the first `<|start|>assistant`. A recipient may also stand before the channel. The last two end the answer.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any

from coordinator.json_text import FIXED_WHITESPACE, load_json
from coordinator.schemas import enforceable
from coordinator.tokenizer import Tokenizer
from coordinator.tools.call_grammar import CallGrammar
from coordinator.tools.call_parser import Delta, merged
from coordinator.tools.offered_tools import AUTO, Tools, parameters_of
from coordinator.trials import Part
from paceline.grammar import Rules
from paceline.results import ToolCallDelta

Messages = list[dict[str, Any]]
# What the template writes before reasoning.
_ANALYSIS = "<|channel|>analysis<|message|>"
_RECIPIENT = re.compile(r"\bto=functions\.([A-Za-z0-9_.-]+)")
_TO = " to="
# Between messages of one kind, which clients get as one text.
_SEPARATOR = "\n\n"


class Mark(Enum):
    START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
    END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"


class Harmony:
    """An `AnswerFormat`."""

    description = "each a message of the channel commentary, to=functions.NAME (harmony)"

    def __init__(self, ids: dict[Mark, int]) -> None:
        self._ids = ids
        self._marks = {token: mark for mark, token in ids.items()}

    @classmethod
    def find(cls, tokenizer: Tokenizer) -> "Harmony | None":
        """Returns the format, if the template writes its channels and the marks are special tokens."""
        marks = tokenizer.reasoning_marks
        if marks is None or marks.begin != _ANALYSIS:
            return None
        ids = {mark: token for mark in Mark if (token := tokenizer.special_id(mark.value)) is not None}
        return cls(ids) if {Mark.START, Mark.CHANNEL, Mark.MESSAGE, Mark.END} <= ids.keys() else None

    def fit(self, messages: Messages, options: dict[str, Any]) -> tuple[Messages, dict[str, Any]]:
        """Gives each call a message of its own, with its result after it: templates write one call of a message.

        Beside a call they refuse content next to reasoning, and write content alone as reasoning. So it is part of that.
        They cut the reasoning of other answers, or write these as reasoning.
        """
        fitted: Messages = []
        rest = iter(messages)
        message = next(rest, None)
        while message is not None:
            results = []
            following = next(rest, None)
            calls = message.get("tool_calls", ())
            while len(calls) > 1 and following is not None and following["role"] == "tool":
                results.append(following)
                following = next(rest, None)
            fitted += (
                _one_by_one(_with_content_as_reasoning(message), results) if calls else [_without_reasoning(message)]
            )
            message = following
        return fitted, options

    def opens_reasoning(self, prompt: Sequence[int]) -> bool | None:
        """Returns None if the prompt ends within a message, which is content, and else False."""
        last = next((token for token in reversed(prompt) if token in self._marks), None)
        return None if last == self._ids[Mark.MESSAGE] else False

    def call_grammar(self, tools: Tools, answer: dict[str, Any] | None) -> CallGrammar:
        """Returns the grammar of an answer's last message: a call or, if it may, content."""
        parts: list[Part] = []
        left_out: list[str] = []
        lines = ["start: call", self._content_type]
        if tools.choice == AUTO:
            # A format holds for all content, so that none may come before it.
            before = "says " if answer is None else ""
            final = "text" if answer is None else f"%json {json.dumps(answer)}"
            lines = [f"start: says call | {before}final", self._content_type, self._final(final)]
            lines += [f"says: ({self._message('commentary')} ({self._message('analysis', 'commentary')})*)?"]
            lines += [self._next, f"text: {self._text()}"]
        lines.append("call: " + " | ".join(f"call_{at}" for at in range(len(tools.offered))))
        places = {id(each): at for at, each in enumerate(tools.functions)}
        channel, message = self._lark(Mark.CHANNEL), self._lark(Mark.MESSAGE)
        for at, function in enumerate(tools.offered):
            field, name = f"tools[{places[id(function)]}].function.parameters", function["name"]
            schema, missing = _schema(function, field)
            left_out += missing
            parts.append(Part(field, f"of {name} can't be enforced", f"start: %json {schema}"))
            to = json.dumps(f" to=functions.{name}")
            head = f'({channel} "commentary" {to} | {to} " "? {channel} "commentary")'
            lines.append(f"call_{at}: {head} content_type {message} %json {schema}")
        return CallGrammar("\n".join(lines) + "\n", parts, left_out)

    def with_reasoning(
        self, answer: Rules, tools: Tools | None, opens_reasoning: bool | None, eos_token_ids: Sequence[int]
    ) -> list[Rules]:
        """Puts reasoning before what the rules allow."""
        if opens_reasoning is None and tools is None:
            return [answer]
        name = answer.get("name", "answer")
        lines = [f"others: ({self._message('analysis')})*", self._next, f"text: {self._text(eos_token_ids)}"]
        if tools is None:
            lines += ["start: others final", self._final(f"@{name}"), self._content_type]
        elif opens_reasoning is not None:
            lines.append(f"start: others @{name}")
        else:
            lines.append(f"start: text {f'(next others @{name})?' if tools.choice == AUTO else f'next others @{name}'}")
        return [{"lark_grammar": "\n".join(lines)}, {**answer, "name": name}]

    def reader(
        self, tools: Tools | None, opens_reasoning: bool | None, request_id: str, choice: int
    ) -> "HarmonyReader | None":
        if tools is None and opens_reasoning is None:
            return None
        names = frozenset[str]() if tools is None else tools.names
        return HarmonyReader(self._marks, names, opens_reasoning is None, f"{request_id}/{choice}")

    def _lark(self, mark: Mark) -> str:
        return f"<[{self._ids[mark]}]>"

    def _text(self, eos_token_ids: Sequence[int] = ()) -> str:
        return f"<[^{','.join(map(str, dict.fromkeys((*self._marks, *eos_token_ids))))}]>*"

    def _message(self, *channels: str) -> str:
        """Returns a message that another follows."""
        names = " | ".join(map(json.dumps, channels))
        return f"{self._lark(Mark.CHANNEL)} ({names}) {self._lark(Mark.MESSAGE)} text next"

    @property
    def _next(self) -> str:
        return f'next: {self._lark(Mark.END)} {self._lark(Mark.START)} "assistant"'

    def _final(self, content: str) -> str:
        return f'final: {self._lark(Mark.CHANNEL)} "final" content_type {self._lark(Mark.MESSAGE)} {content}'

    @property
    def _content_type(self) -> str:
        marked = f'| " "? {self._lark(Mark.CONSTRAIN)} "json"' if Mark.CONSTRAIN in self._ids else ""
        return f'content_type: (" json" {marked})?'


class Kind(Enum):
    REASONING, CONTENT, CALL = range(3)


class HarmonyReader:
    """Splits one answer's messages, token by token. Marks are found by id: a mark spelled in other tokens is text."""

    def __init__(self, marks: dict[int, Mark], names: frozenset[str], is_content: bool, id_prefix: str) -> None:
        """`names`: of the tools. `is_content`: the prompt ends within content, and not within a header."""
        self._marks, self._names, self._id_prefix = marks, names, id_prefix
        self.num_reasoning_tokens = 0
        self.has_whole_call = False
        # None within a header.
        self._kind: Kind | None = Kind.CONTENT if is_content else None
        # A header's text, with line ends for its marks.
        self._header = ""
        self._num_header_tokens = 0
        self._has_marks = is_content
        # Kinds of which a message is complete, so that the next is set off from it.
        self._seen: set[Kind] = set()
        self._is_new = False
        self._reasoning: list[str] = []
        self._deltas: list[Delta] = []
        self._num_calls = 0
        self._arguments: list[str] = []

    def is_mark(self, token: int) -> bool:
        """Returns whether the text so far must be read before this token's."""
        return token in self._marks

    def read(self, token: int, text: str) -> str:
        """Returns content. `text`: what the token completes; up to it all, if it is a mark."""
        mark = self._marks.get(token)
        was_reasoning = self._kind is Kind.REASONING
        content = self._take(text)
        if self._kind is None:
            self._num_header_tokens += 1
        if mark is Mark.END and not self._has_marks and not self._header.startswith(_TO):
            # A model that leaves the first header out answers at once.
            content += self._header
            self._seen.add(Kind.CONTENT)
        if mark is not None:
            self._pass(mark)
        self.num_reasoning_tokens += was_reasoning
        return content

    def finish(self, text: str, is_cut: bool) -> str:
        """Returns what is left of the content. `text`: the answer's last."""
        content = self._take(text)
        # As before a mark of an end.
        if not self._has_marks and not (is_cut and _TO.startswith(self._header[: len(_TO)])):
            content += self._header
        self._end_message()
        return content

    def take_reasoning(self) -> str:
        """Returns the reasoning found since the last time."""
        reasoning, self._reasoning = "".join(self._reasoning), []
        return reasoning

    def take_deltas(self) -> list[ToolCallDelta]:
        """Returns the parts of calls found since the last time."""
        deltas, self._deltas = self._deltas, []
        return [each for each in merged(deltas) if isinstance(each, ToolCallDelta)]

    def _take(self, text: str) -> str:
        """Returns the part that is content."""
        if self._kind is None:
            self._header += text
        elif self._kind is Kind.CALL:
            self._arguments.append(text)
            self._deltas += [ToolCallDelta(self._num_calls - 1, arguments=text)] if text else []
        elif text:
            if self._is_new and self._kind in self._seen:
                text = _SEPARATOR + text
            self._is_new = False
            if self._kind is Kind.CONTENT:
                return text
            self._reasoning.append(text)
        return ""

    def _pass(self, mark: Mark) -> None:
        if not self._has_marks and mark in (Mark.CALL, Mark.RETURN):
            return
        self._has_marks = True
        if self._kind is None and mark is Mark.MESSAGE:
            self._begin_message()
        elif self._kind is None and mark in (Mark.CHANNEL, Mark.CONSTRAIN):
            self._header += "\n"
        elif mark not in (Mark.MESSAGE, Mark.CONSTRAIN):
            self._end_message()
            self._kind, self._num_header_tokens = None, 1
            self._header = "\n" if mark is Mark.CHANNEL else ""

    def _begin_message(self) -> None:
        found = _RECIPIENT.search(self._header)
        channel = self._header.partition("\n")[2].split()
        if found is not None and found[1] in self._names:
            self._kind = Kind.CALL
            self._begin_call(found[1])
        elif channel[:1] == ["analysis"]:
            self._kind = Kind.REASONING
            self.num_reasoning_tokens += self._num_header_tokens
        else:
            self._kind = Kind.CONTENT
        self._header, self._is_new = "", True

    def _begin_call(self, name: str) -> None:
        digest = hashlib.sha256(f"{self._id_prefix}/{self._num_calls}".encode()).hexdigest()
        self._deltas.append(ToolCallDelta(self._num_calls, f"call_{digest[:24]}", name))
        self._num_calls += 1
        self._arguments.clear()

    def _end_message(self) -> None:
        if self._kind is Kind.CALL:
            self.has_whole_call |= isinstance(load_json("".join(self._arguments)), dict)
        if self._kind is not None and not self._is_new:
            self._seen.add(self._kind)
        self._header = ""


def _schema(function: dict[str, Any], field: str) -> tuple[str, list[str]]:
    """Returns a tool's schema, written as chat templates write arguments, and what of it is not enforced."""
    is_strict = function.get("strict", False)
    schema, missing = enforceable(
        parameters_of(function), strict=is_strict, field=field, subject=f"of {function['name']} "
    )
    return json.dumps(schema | {"x-guidance": FIXED_WHITESPACE | {"lenient": not is_strict}}), missing


def _without_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "reasoning_content"}


def _with_content_as_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    content, reasoning = message.get("content"), message.get("reasoning_content")
    if not content or not reasoning:
        return message
    return {**message, "content": "", "reasoning_content": f"{reasoning}{_SEPARATOR}{content}"}


def _one_by_one(message: dict[str, Any], results: Messages) -> Iterator[dict[str, Any]]:
    """Yields a message for each call, the first with all else, and their results."""
    for at, call in enumerate(message["tool_calls"]):
        yield {**(message if at == 0 else {"role": message["role"], "content": ""}), "tool_calls": [call]}
        yield from (each for each in results if each.get("tool_call_id") == call["id"])
        results = [each for each in results if each.get("tool_call_id") != call["id"]]
    yield from results
