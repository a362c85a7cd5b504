"""Chats with tools, for one model: what its template gets, the grammar of its calls, and a parser of its answers."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from coordinator.tokenizer import Tokenizer
from coordinator.tools.call_formats import HERMES, CallFormat, find_call_format
from coordinator.tools.call_grammar import make_call_grammar
from coordinator.tools.call_parser import CallParser, ContentDelta, Delta, merged
from coordinator.tools.conversation import Message, renders_tools, to_template, write_out
from coordinator.tools.tools import NONE, Tools
from paceline.results import ToolCallDelta


class ToolChats:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def call_format(self) -> CallFormat:
        if not self._renders_tools:
            return HERMES
        return find_call_format(self._tokenizer.chat_template, self._tokenizer.vocabulary)

    def template_input(
        self, messages: Sequence[Message], tools: Tools | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns the template's messages and options. Raises InvalidArgument."""
        if tools is not None and tools.choice == NONE:
            tools = None
        if not self._renders_tools:
            return write_out(messages, tools), {}
        return to_template(messages, self.call_format), {} if tools is None else {"tools": tools.for_template}

    def grammar(self, tools: Tools, answer: dict[str, Any] | None) -> str:
        """`answer`: the JSON Schema of an answer without calls. Raises InvalidArgument naming the tool."""
        return make_call_grammar(tools, self.call_format, self._tokenizer.id_of, answer)

    def reader(self, tools: Tools, request_id: str, choice: int) -> "CallReader":
        return CallReader(CallParser(tools, self.call_format, request_id, choice), self._marks)

    @cached_property
    def _marks(self) -> dict[int, str]:
        """Returns the special tokens among the format's marks, which are no text."""
        marks = (self.call_format.begin, self.call_format.end, self.call_format.arguments_marker)
        ids = {self._tokenizer.special_id(mark): mark for mark in marks if mark}
        return {token: mark for token, mark in ids.items() if token is not None}

    @cached_property
    def _renders_tools(self) -> bool:
        return self._tokenizer.chat_template is not None and renders_tools(self._tokenizer.render_chat)


class CallReader:
    """Splits one answer, token by token, into its text and its calls."""

    def __init__(self, parser: CallParser, marks: dict[int, str]) -> None:
        self._parser, self._marks = parser, marks
        self._deltas: list[Delta] = []

    @property
    def has_whole_call(self) -> bool:
        return self._parser.has_whole_call

    def read(self, token: int, text: str) -> str:
        """Returns what stands outside of calls. `text`: what the token completes."""
        return self._split(self._parser.feed(text + self._marks.get(token, "")))

    def finish(self, text: str) -> str:
        """Returns what is left outside of calls. `text`: the answer's last."""
        return self._split(self._parser.feed(text)) + self._split(self._parser.finish())

    def take_deltas(self) -> list[ToolCallDelta]:
        """Returns the parts of calls found since the last time."""
        deltas, self._deltas = self._deltas, []
        return [each for each in merged(deltas) if isinstance(each, ToolCallDelta)]

    def _split(self, found: list[Delta]) -> str:
        self._deltas += (each for each in found if isinstance(each, ToolCallDelta))
        return "".join(each.text for each in found if isinstance(each, ContentDelta))
