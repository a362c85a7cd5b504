"""The grammar of messages that call tools, in llguidance's variant of Lark."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from coordinator.json_text import FIXED_WHITESPACE
from coordinator.schemas import enforceable
from coordinator.tools.call_formats import CallFormat
from coordinator.tools.offered_tools import AUTO, CHOICES, Tools, parameters_of
from coordinator.trials import Part
from paceline.errors import InvalidArgument


class CallGrammar(NamedTuple):
    """`parts`: the grammar of each offered tool's arguments, as an error of the whole does not say which tool it is about.

    left_out: what of the tools' schemas is not enforced.
    """

    text: str
    parts: list[Part]
    left_out: list[str]


def make_call_grammar(
    tools: Tools, call_format: CallFormat, id_of: Callable[[str], int | None], answer: dict[str, Any] | None = None
) -> CallGrammar:
    """Returns the grammar of a message under `tools.choice`, which is not none. Raises InvalidArgument naming the tool.

    Takes linear time: nothing is compiled here.

    `answer`: the JSON Schema of an answer without calls; None: any text.
    `id_of`: the id of the token of that name, if there is one. To the library, added tokens in angle brackets match no
    text, special or not, and only such names could stand in a grammar.
    """
    grammar = _Grammar(tools, call_format, id_of, answer)
    return CallGrammar(grammar.text(), grammar.parts, grammar.left_out)


class _Grammar:
    def __init__(
        self,
        tools: Tools,
        call_format: CallFormat,
        id_of: Callable[[str], int | None],
        answer: dict[str, Any] | None,
    ) -> None:
        self._tools = tools
        self._answer = answer
        self._format = call_format
        self._id_of = id_of
        # As in CallGrammar.
        self.parts: list[Part] = []
        self.left_out: list[str] = []
        self._begin = self._marker(call_format.begin)

    def text(self) -> str:
        return "\n".join([*self._start(), f"rest: {self._rest()}", *self._each_call()]) + "\n"

    def _start(self) -> list[str]:
        """`rest`: the calls without the first begin marker. Any text without the marker comes first, if it may."""
        is_special = self._begin.startswith("<")
        if self._tools.choice != AUTO:
            begin = self._begin if not self._format.is_bare else f"{self._begin}?" if is_special else ""
            return [f"start: {begin} rest"]
        if self._answer is not None and self._format.is_bare:
            raise InvalidArgument("format", "can't stand beside tools: this model writes its calls as JSON too")
        if self._answer is not None:
            return [f"start: answer | {self._begin} rest", f"answer: %json {json.dumps(self._answer)}"]
        if self._format.is_bare:
            heads = " | ".join(_quoted(self._head(each["name"])) for each in self._tools.offered)
            marked = f"({self._begin} rest)?" if is_special else ""
            # JSON that is not a call stays possible.
            return [f"start: TEXT? {marked} | rest", f"HEAD: {heads}", "TEXT: /(?s:.*)/ & ~(HEAD /(?s:.*)/)"]
        if is_special:
            # Every other token, special or not: the model's own distribution.
            return [f"start: text ({self._begin} rest)?", f"text: {self._begin.replace('[', '[^')}*"]
        return ["start: TEXT? | text_and_begin rest", "TEXT: /(?s:.*)/", f"text_and_begin[lazy]: TEXT {self._begin}"]

    def _rest(self) -> str:
        separator, end = _quoted(self._format.separator), self._marker(self._format.end)
        opening, closing = _quoted(self._format.opening), _quoted(self._format.closing)
        is_single = not self._tools.parallel or self._tools.choice not in CHOICES
        if self._format.marks_each:
            marked = f"{opening} call {closing} {end}"
            # The message may end after a separator too: Qwen2.5-Coder writes one after every call, and would have to call again.
            last = f"{separator}?" if self._format.separator.isspace() else ""
            return marked if is_single else f"{marked} ({separator} {self._begin} {marked})* {last}"
        more = "" if is_single else f"({separator} call)*"
        return f"{opening} call {more} {closing} {end}"

    def _each_call(self) -> list[str]:
        lines = ["call: " + " | ".join(f"call_{at}" for at in range(len(self._tools.offered)))]
        places = {id(each): at for at, each in enumerate(self._tools.functions)}
        for at, function in enumerate(self._tools.offered):
            name, field = function["name"], f"tools[{places[id(function)]}].function.parameters"
            schema = json.dumps(self._schema(function, field))
            self.parts.append(Part(field, f"of {name} can't be enforced", f"start: %json {schema}"))
            if self._format.arguments_marker:
                head, tail = f"{_quoted(name)} {self._marker(self._format.arguments_marker)}", ""
            else:
                head, tail = _quoted(self._head(name)), _quoted("}")
            lines.append(f"call_{at}: {head} %json {schema} {tail}")
        return lines

    def _schema(self, function: dict[str, Any], field: str) -> dict[str, Any]:
        # An unknown keyword or format is ignored unless the tool is strict.
        is_strict = function.get("strict", False)
        subject = f"of {function['name']} "
        schema, missing = enforceable(parameters_of(function), strict=is_strict, field=field, subject=subject)
        self.left_out += missing
        # As chat templates write it: what the model generates comes back with the same tokens in the next prompt.
        return schema | {"x-guidance": FIXED_WHITESPACE | {"lenient": not is_strict}}

    def _head(self, name: str) -> str:
        return f'{{"name": "{name}", "{self._format.arguments_key}": '

    def _marker(self, text: str) -> str:
        token_id = self._id_of(text) if text else None
        return _quoted(text) if token_id is None else f"<[{token_id}]>"


def _quoted(text: str) -> str:
    return json.dumps(text) if text else ""
