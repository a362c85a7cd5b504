"""How models write their tool calls, as data: the grammar, the parser and what is written back all come from it.

A message is text, calls or both: text first. Its calls are

    calls_begin  head NAME middle ARGUMENTS tail  separator  head NAME middle ARGUMENTS tail  calls_end
"""

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.keyword_arguments import KeywordArguments
from coordinator.tools.call_arguments.notation import JSON, PYTHON
from coordinator.tools.call_arguments.style import ArgumentsStyle

JSON_OBJECT = JsonArguments()
# Where a template writes a call's id, or its number.
ID, INDEX = "$ID", "$INDEX"
SLOTS = re.compile(r"(\$ID|\$INDEX)")
# Ids that a template takes: any, 9 letters and digits, or `functions.NAME:INDEX`, which is all that it writes of the name.
ANY_IDS, SHORT_IDS, FUNCTION_IDS = "any", "short", "functions"
# A mark, as they stand before calls: `<tool_call>`, `[TOOL_CALLS]`.
_MARK = re.compile(r"<[^<>\s]+>|\[[A-Z_]+\]")
_ENVELOPE = re.compile(r'(?s)(?P<before>.*)\{\s*(?:"\w+": "[^"]*",\s+)*"(?P<name>\w+)": "')
_ARGUMENTS_KEY = re.compile(r'",\s+(?:"\w+": "[^"]*",\s+)*"(?P<arguments>\w+)": ')
_ENVELOPE_END = re.compile(r'(?s)(?:,\s+"\w+": "[^"]*")*\s*\}(?P<after>.*)')


class WrittenCall(NamedTuple):
    """arguments: text if they are no object."""

    name: str
    arguments: dict[str, Any] | str
    id: str = ""


class Envelope(NamedTuple):
    """A call that is a JSON object: the texts around it, and its keys."""

    before: str
    name_key: str
    arguments_key: str
    after: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The texts in and around calls, as the model's chat template writes them.

    lead: white space before the calls of a message without text. text_separator: between text and calls.
    optional_begin: a mark that the model may write before calls, though the template may write none.
    is_loose: the model may write a bare object or a fenced one instead, with nothing that tells it from text but a tool's
    name. is_single: the template writes one call a message.
    """

    name: str
    head: str
    middle: str
    tail: str
    arguments: ArgumentsStyle = JSON_OBJECT
    calls_begin: str = ""
    calls_end: str = ""
    separator: str = ""
    lead: str = ""
    text_separator: str = "\n"
    optional_begin: str = ""
    ids: str = ANY_IDS
    first_index: int = 0
    is_loose: bool = False
    is_single: bool = False

    @property
    def opening(self) -> str:
        """Returns what stands before the first call's name, without a mark that is optional."""
        return self.calls_begin.removeprefix(self.optional_begin) + self.head

    @property
    def begin(self) -> str:
        """Returns the mark that tells calls from text; "" if there is none."""
        if self.is_bare:
            return self.optional_begin
        if mark := _MARK.match(self.opening):
            return mark[0]
        envelope = self.envelope
        return (SLOTS.split(self.opening)[0] if envelope is None else self.calls_begin + envelope.before).rstrip()

    @property
    def is_bare(self) -> bool:
        """Whether a call at the message's beginning needs no mark."""
        return self.opening[:1] in ("", "{") or (self.opening[0] == "[" and not _MARK.match(self.opening))

    @property
    def marks_each(self) -> bool:
        """Whether the mark stands before each call."""
        return self.calls_begin == "" and not self.is_bare

    @property
    def envelope(self) -> Envelope | None:
        """Returns the JSON object that a call is; None if it is none."""
        before, arguments, after = (
            _ENVELOPE.fullmatch(self.head),
            _ARGUMENTS_KEY.fullmatch(self.middle),
            _ENVELOPE_END.fullmatch(self.tail),
        )
        if before is None or arguments is None or after is None or not isinstance(self.arguments, JsonArguments):
            return None
        return Envelope(before["before"], before["name"], arguments["arguments"], after["after"])

    def write(self, calls: Sequence[WrittenCall]) -> str:
        """Returns calls as the template writes them."""
        return self.calls_begin + self.separator.join(map(self._write_call, calls, range(len(calls)))) + self.calls_end

    def _write_call(self, call: WrittenCall, index: int) -> str:
        def fill(text: str) -> str:
            return text.replace(ID, call.id).replace(INDEX, str(self.first_index + index))

        arguments = call.arguments
        if isinstance(arguments, str):
            written = (
                JsonArguments().notation.write(arguments)
                if isinstance(self.arguments, JsonArguments)
                else self.arguments.write({"arguments": arguments})
            )
        else:
            written = self.arguments.write(arguments)
        return f"{fill(self.head)}{call.name}{fill(self.middle)}{written}{fill(self.tail)}"

    @property
    def example(self) -> str:
        """Returns two calls, for people."""
        return self.write(
            [
                WrittenCall("get_weather", {"city": "Paris", "days": 3}, "a1b2c3d4e"),
                WrittenCall("get_time", {}, "f5g6h7i8j"),
            ]
        )

    def has_shape_of(self, other: "CallFormat") -> bool:
        """Returns whether calls are written alike, whatever else differs."""
        return all(getattr(self, name) == getattr(other, name) for name in _SHAPE)


_SHAPE = ("opening", "middle", "tail", "separator", "calls_end", "arguments")
_OBJECT = ('{"name": "', '", "arguments": ', "}")
HERMES = CallFormat(
    "hermes", '<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n", is_loose=True
)
# In this order: fine-tunes of Llama and Mistral keep the vocabulary, but their templates write Hermes's calls; and
# vocabularies with [ARGS] have [TOOL_CALLS] too.
CALL_FORMATS = (
    HERMES,
    CallFormat("mistral", "[TOOL_CALLS]", "[ARGS]", "", ids=SHORT_IDS),
    CallFormat("mistral-list", *_OBJECT, calls_begin="[TOOL_CALLS][", calls_end="]", separator=", ", ids=SHORT_IDS),
    CallFormat(
        "llama", '{"name": "', '", "parameters": ', "}", calls_begin="<|python_tag|>", separator="; ",
        optional_begin="<|python_tag|>",
    ),
)  # fmt: skip
# Of families whose templates tell of tools but drop calls, by what they tell.
_PHI = CallFormat("phi", *_OBJECT, calls_begin="<|tool_call|>[", calls_end="]<|/tool_call|>", separator=", ")
_GRANITE = CallFormat("granite", *_OBJECT, calls_begin="<|tool_call|>[", calls_end="]", separator=", ")
_LFM = CallFormat(
    "lfm", "", "(", ")", KeywordArguments("=", ", ", replace(JSON, words=PYTHON.words), PYTHON, PYTHON),
    "<|tool_call_start|>[", "]<|tool_call_end|>", ", ",
)  # fmt: skip
_TOLD = (
    ("<|tool_list_start|>", _LFM),
    ("<|/tool_call|>", _PHI),
    ("<|tool_call|>", _GRANITE),
    *((each.middle if "[" in each.middle else each.begin, each) for each in CALL_FORMATS),
)
# Forms that share a mark with one of these.
_OTHERS = ("<function=", "<arg_key>", "<parameter", "<function>")


def told_format(chat_template: str, vocabulary: Container[str]) -> CallFormat | None:
    """Returns the first format that a template's text shows by its mark, else one of the vocabulary."""
    if any(each in chat_template for each in _OTHERS):
        return None
    in_template = (each for sign, each in _TOLD if sign in chat_template)
    in_vocabulary = (each for sign, each in _TOLD if sign in vocabulary)
    return next(in_template, None) or next(in_vocabulary, None)
