"""The grammar of messages that call tools, in llguidance's variant of Lark."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from coordinator.json_text import FIXED_WHITESPACE
from coordinator.schemas import enforceable
from coordinator.tools.call_arguments.lark_rules import LarkRules, quoted
from coordinator.tools.call_formats import ID, INDEX, SHORT_IDS, SLOTS, CallFormat
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
    tools: Tools, call_format: CallFormat, tokens: Mapping[str, int], answer: dict[str, Any] | None = None
) -> CallGrammar:
    """Returns the grammar of a message under `tools.choice`, which is not none. Raises InvalidArgument naming the tool.

    Takes linear time: nothing is compiled here.

    `answer`: the JSON Schema of an answer without calls; None: any text.
    `tokens`: ids of the tokens that match no text, by name. To the library, these are special tokens and added ones in
    angle brackets.
    """
    grammar = _Grammar(tools, call_format, tokens, answer)
    return CallGrammar(grammar.text(), grammar.parts, grammar.left_out)


class _Grammar:
    def __init__(
        self, tools: Tools, call_format: CallFormat, tokens: Mapping[str, int], answer: dict[str, Any] | None
    ) -> None:
        self._tools = tools
        self._answer = answer
        self._format = call_format
        self._rules = LarkRules(tokens)
        # As in CallGrammar.
        self.parts: list[Part] = []
        self.left_out: list[str] = []
        self._begin = self._rules.literal(call_format.begin)
        # The token that is the mark, or part of it.
        self._token = self._rules.first_token(call_format.begin)

    def text(self) -> str:
        lines = [*self._start(), f"rest: {self._rest()}", *self._each_call()]
        return "\n".join([*lines, *self._slots(), *self._rules.lines]) + "\n"

    def _start(self) -> list[str]:
        """`rest`: the calls without the first begin mark. Any text without the mark comes first, if it may."""
        if self._tools.choice != AUTO:
            begin = self._begin if not self._format.is_bare else f"{self._begin}?" if self._token else ""
            # As the template writes it, so that the call is found in the prefix cache.
            lead = quoted(self._format.lead)
            return [f"start: {lead} {begin} rest"]
        if self._answer is not None and self._format.is_bare:
            raise InvalidArgument("format", "can't stand beside tools: this model writes its calls as JSON too")
        if self._answer is not None:
            return [f"start: answer | {self._begin} rest", f"answer: %json {json.dumps(self._answer)}"]
        if self._format.is_bare:
            heads = " | ".join(quoted(self._bare_head(each["name"])) for each in self._tools.offered)
            marked = f"({self._begin} rest)?" if self._token else ""
            # JSON that is not a call stays possible.
            return [f"start: TEXT? {marked} | rest", f"HEAD: {heads}", "TEXT: /(?s:.*)/ & ~(HEAD /(?s:.*)/)"]
        if self._token:
            # Every other token, special or not: the model's own distribution.
            after = self._format.begin.partition(self._token)[2]
            mark = self._rules.literal(self._token)
            assert mark
            return [f"start: text ({mark} {self._rules.literal(after)} rest)?", f"text: {mark.replace('[', '[^')}*"]
        return ["start: TEXT? | text_and_begin rest", "TEXT: /(?s:.*)/", f"text_and_begin[lazy]: TEXT {self._begin}"]

    def _bare_head(self, name: str) -> str:
        return self._format.opening + name + SLOTS.split(self._format.middle)[0]

    def _rest(self) -> str:
        call_format = self._format
        opening = call_format.opening.removeprefix(call_format.begin)
        end = self._rules.literal(call_format.calls_end)
        # Where calls have no mark, one literal tells them from any other text.
        first = "first" if call_format.is_bare else f"{self._filled(opening)} call"
        if not self._tools.parallel or self._tools.choice not in CHOICES or call_format.is_single:
            return f"{first} {end}"
        separator = self._rules.literal(call_format.separator)
        # The message may end after a separator too: Qwen2.5-Coder writes one after every call, and would have to call again.
        last = f"{separator}?" if call_format.separator.isspace() and call_format.marks_each else ""
        return f"{first} ({separator} {self._filled(call_format.head)} call)* {last} {end}"

    def _filled(self, text: str) -> str:
        """Returns a text whose slots are any id or number."""
        named = {ID: "ID", INDEX: "INDEX"}
        return " ".join(named.get(each) or self._rules.literal(each) for each in SLOTS.split(text) if each)

    def _slots(self) -> Iterator[str]:
        written = self._format.head + self._format.middle + self._format.tail
        if ID in written:
            yield "ID: /[A-Za-z0-9]{9}/" if self._format.ids == SHORT_IDS else "ID: /[A-Za-z0-9_-]{1,32}/"
        if INDEX in written:
            yield "INDEX: /[0-9]{1,6}/"

    def _each_call(self) -> list[str]:
        offered = range(len(self._tools.offered))
        lines = ["call: " + " | ".join(f"call_{at}" for at in offered)]
        if self._format.is_bare:
            lines.append("first: " + " | ".join(f"first_{at}" for at in offered))
        places = {id(each): at for at, each in enumerate(self._tools.functions)}
        tail = self._filled(self._format.tail)
        for at, function in enumerate(self._tools.offered):
            name, field = function["name"], f"tools[{places[id(function)]}].function.parameters"
            schema = self._schema(function, field)
            self.parts.append(Part(field, f"of {name} can't be enforced", f"start: %json {json.dumps(schema)}"))
            arguments = self._format.arguments.grammar(schema, self._rules, self._format.tail)
            lines.append(f"arguments_{at}: {arguments} {tail}")
            lines.append(f"call_{at}: {self._filled(name + self._format.middle)} arguments_{at}")
            if self._format.is_bare:
                opening = self._format.opening + name + self._format.middle
                lines.append(f"first_{at}: {self._filled(opening)} arguments_{at}")
        return lines

    def _schema(self, function: dict[str, Any], field: str) -> dict[str, Any]:
        # An unknown keyword or format is ignored unless the tool is strict.
        is_strict = function.get("strict", False)
        subject = f"of {function['name']} "
        schema, missing = enforceable(parameters_of(function), strict=is_strict, field=field, subject=subject)
        missing += (f"{subject}{each}" for each in self._format.arguments.unenforced(schema))
        if is_strict and missing:
            raise InvalidArgument(field, f"of {function['name']} can't be enforced: {missing[0].removeprefix(subject)}")
        self.left_out += missing
        # As chat templates write it: what the model generates comes back with the same tokens in the next prompt.
        return schema | {"x-guidance": FIXED_WHITESPACE | {"lenient": not is_strict}}
