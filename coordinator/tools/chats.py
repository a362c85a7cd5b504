"""Chats with one model: what its template gets, the grammar of its calls and reasoning, and a reader of its answers."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from coordinator.answer_reader import AnswerReader
from coordinator.reasoning_marks import ReasoningMarks, placed
from coordinator.tokenizer import Tokenizer
from coordinator.tools.answer_format import AnswerFormat
from coordinator.tools.call_formats import FUNCTION_IDS, HERMES, CallFormat
from coordinator.tools.call_grammar import CallGrammar, make_call_grammar
from coordinator.tools.call_parser import CallParser, ContentDelta, Delta, merged
from coordinator.tools.call_probe import FoundCalls, find_calls
from coordinator.tools.harmony import Harmony
from coordinator.tools.offered_tools import NONE, Tools, demanded_fields, with_fields
from coordinator.tools.reasoning import CodedMarks, ReasoningReader, with_reasoning
from coordinator.tools.template_fit import TemplateFit
from coordinator.tools.tool_messages import (
    PROBE_TOOLS,
    Message,
    renders_tools,
    to_template,
    with_function_ids,
    write_calls,
    write_out,
)
from paceline.errors import InvalidArgument
from paceline.grammar import Rules
from paceline.results import ToolCallDelta

# Forms of whole answers; where none is the template's, reasoning and calls are marked within one text.
ANSWER_FORMATS: tuple[Callable[[Tokenizer], AnswerFormat | None], ...] = (Harmony.find,)


class Chats:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def call_format(self) -> CallFormat:
        """Raises InvalidArgument if the model's calls have no form that is known."""
        return self._calls.known()

    @cached_property
    def _calls(self) -> FoundCalls:
        """Returns how calls are written. The template is asked once, where tools or calls are first in a chat."""
        if not self._renders_tools:
            return FoundCalls(HERMES)
        template = self._tokenizer.chat_template_with_tools or ""
        return find_calls(self._tokenizer.render_chat, template, self._tokenizer.vocabulary)

    def template_input(
        self, messages: Sequence[Message], tools: Tools | None
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns the template's messages and options. Raises InvalidArgument."""
        written, options = self._written(messages, tools)
        if self.answer_format is not None:
            written, options = self.answer_format.fit(written, options)
        fitted = self._with_ids(self._fit_to(bool(options)).fit(written))
        has_tools = "tools" in options
        marks = self._tokenizer.reasoning_marks_with_tools if has_tools else self._tokenizer.reasoning_marks
        return fitted if marks is None else [_with_placed_reasoning(each, marks.key) for each in fitted], options

    def _written(self, messages: Sequence[Message], tools: Tools | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        if tools is None and not any(each.calls or each.tool_call_id or each.reasoning for each in messages):
            return [{"role": each.role, "content": each.content} for each in messages], {}
        if tools is not None and tools.choice == NONE:
            tools = None
        if tools is not None and not self._renders_tools:
            return write_out(messages, tools), {}
        if tools is not None and self.answer_format is None:
            self._calls.known()
        written = to_template(messages)
        if tools is None:
            return written, {}
        return written, {"tools": [with_fields(each, self._demanded_fields) for each in tools.for_template]}

    def opens_reasoning(self, prompt: Sequence[int], tools: Tools | None) -> bool | None:
        """Returns whether a chat's prompt has opened reasoning, or None if none can follow."""
        if self.answer_format is not None:
            return self.answer_format.opens_reasoning(prompt)
        marks = self._marks_with(tools)
        return None if marks is None else marks.is_opened_by(prompt, self._tokenizer)

    def call_grammar(self, tools: Tools, answer: dict[str, Any] | None) -> CallGrammar:
        """`answer`: the JSON Schema of an answer without calls. Raises InvalidArgument naming the tool."""
        if self.answer_format is not None:
            return self.answer_format.call_grammar(tools, answer)
        return make_call_grammar(tools, self.call_format, self._tokens, answer)

    def with_reasoning(
        self, answer: Rules, opens_reasoning: bool | None, eos_token_ids: Sequence[int], tools: Tools | None = None
    ) -> list[Rules]:
        """Puts reasoning before what an answer's rules allow. `tools`: those of a call grammar."""
        if opens_reasoning is None and tools is None:
            return [answer]
        if self.answer_format is not None:
            return self.answer_format.with_reasoning(answer, tools, opens_reasoning, eos_token_ids)
        marks = self._marks_with(tools)
        if opens_reasoning is None or marks is None:
            return [answer]
        return with_reasoning(answer, marks, opens_reasoning, eos_token_ids)

    def reader(
        self, tools: Tools | None, opens_reasoning: bool | None, request_id: str, choice: int
    ) -> AnswerReader | None:
        """Returns the reader of sample `choice`; None if all of it is text."""
        if self.answer_format is not None:
            return self.answer_format.reader(tools, opens_reasoning, request_id, choice)
        marks = self._marks_with(tools)
        # Without reasoning the answer may still end with a mark.
        is_marked = marks is not None and (opens_reasoning is not None or marks.answer_end)
        if tools is None and not is_marked:
            return None
        parser = None if tools is None else CallParser(tools, self.call_format, request_id, choice)
        reasoning = ReasoningReader(marks, opens_reasoning) if marks is not None and is_marked else None
        return MarkedReader(parser, {} if tools is None else self._special_call_marks, reasoning)

    @cached_property
    def answer_format(self) -> AnswerFormat | None:
        """Returns the form of whole answers, if the model has one of its own."""
        return next((found for find in ANSWER_FORMATS if (found := find(self._tokenizer)) is not None), None)

    def _fit_to(self, has_tools: bool) -> TemplateFit:
        """Templates treat chats otherwise that have tools: some tokenizers have two templates."""
        return self._fit_with_tools if has_tools else self._fit_without_tools

    @cached_property
    def _fit_with_tools(self) -> TemplateFit:
        return TemplateFit(lambda chat: self._render(chat, PROBE_TOOLS), self._write_calls)

    @cached_property
    def _fit_without_tools(self) -> TemplateFit:
        return TemplateFit(lambda chat: self._render(chat, {}), self._write_calls)

    @cached_property
    def _demanded_fields(self) -> list[tuple[str, ...]]:
        def takes(function: Mapping[str, Any]) -> bool:
            try:
                self._render(
                    [{"role": "user", "content": "x"}], {"tools": [{"type": "function", "function": function}]}
                )
            except InvalidArgument:
                return False
            return True

        return demanded_fields(takes)

    def _render(self, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        return self._tokenizer.render_chat(self._with_ids(messages), options)

    def _with_ids(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Returns messages with the ids that the template takes, where these follow from the calls."""
        has_calls = any("tool_calls" in each for each in messages)
        return with_function_ids(messages) if has_calls and self._written_format.ids == FUNCTION_IDS else messages

    def _write_calls(self, message: dict[str, Any]) -> str:
        return write_calls(message, self._written_format)

    @property
    def _written_format(self) -> CallFormat:
        """Returns the format in which calls are written; that of Hermes if it is unknown."""
        return self._calls.format or HERMES

    def _marks_with(self, tools: Tools | None) -> CodedMarks | None:
        """Returns the marks of the template that a request with these tools is rendered with."""
        is_told = tools is not None and tools.choice != NONE and self._renders_tools
        return self._marks_with_tools if is_told else self._marks_without_tools

    @cached_property
    def _marks_without_tools(self) -> CodedMarks | None:
        return self._coded(self._tokenizer.reasoning_marks)

    @cached_property
    def _marks_with_tools(self) -> CodedMarks | None:
        return self._coded(self._tokenizer.reasoning_marks_with_tools)

    def _coded(self, marks: ReasoningMarks | None) -> CodedMarks | None:
        return None if marks is None else CodedMarks.of(marks, self._tokenizer)

    @cached_property
    def _special_call_marks(self) -> dict[int, str]:
        """Returns the special tokens among the format's marks, which are no text."""
        call_format = self.call_format
        texts = (call_format.optional_begin, call_format.calls_begin, call_format.head, call_format.middle, call_format.tail,
                 call_format.separator, call_format.calls_end, *call_format.arguments.marks)  # fmt: skip
        written = "\n".join(texts)
        return {
            token: name
            for name, token in self._tokens.items()
            if name in written and self._tokenizer.special_id(name) == token
        }

    @cached_property
    def _tokens(self) -> dict[str, int]:
        """Returns the tokens that match no text in a grammar."""
        added = self._tokenizer.backend.get_added_tokens_decoder()
        return {
            str(token): token_id
            for token_id, token in added.items()
            if token.special or (str(token).startswith("<") and str(token).endswith(">"))
        }

    @cached_property
    def _renders_tools(self) -> bool:
        return self._tokenizer.chat_template is not None and renders_tools(self._tokenizer.render_chat)


def _with_placed_reasoning(message: dict[str, Any], key: str) -> dict[str, Any]:
    if not key or "reasoning_content" not in message:
        return message
    others = {name: value for name, value in message.items() if name != "reasoning_content"}
    return placed(others, message["reasoning_content"], key)


class MarkedReader:
    """Splits one answer, token by token, into its reasoning, its text and its calls, which marks set apart."""

    def __init__(
        self, parser: CallParser | None, call_marks: dict[int, str], reasoning: ReasoningReader | None
    ) -> None:
        """`call_marks`: those that are special tokens, and thus no text."""
        self._parser, self._reasoning_reader = parser, reasoning
        self._call_marks = {} if parser is None else call_marks
        self._reasoning: list[str] = []
        self._deltas: list[Delta] = []
        # With the reasoning's marks.
        self.num_reasoning_tokens = 0

    @property
    def has_whole_call(self) -> bool:
        return self._parser is not None and self._parser.has_whole_call

    def is_mark(self, token: int) -> bool:
        """Returns whether the text so far must be read before this token's: a boundary of reasoning or a call."""
        return token in self._call_marks or (
            self._reasoning_reader is not None and self._reasoning_reader.is_mark(token)
        )

    def read(self, token: int, text: str) -> str:
        """Returns what stands outside of reasoning and calls. `text`: what the token completes; up to it all, if it is a mark."""
        text += self._call_marks.get(token, "")
        if self._reasoning_reader is not None:
            was_inside = self._reasoning_reader.is_inside
            reasoning, text = self._reasoning_reader.read(token, text)
            self._reasoning.append(reasoning)
            self.num_reasoning_tokens += was_inside or self._reasoning_reader.is_inside
        return text if self._parser is None else self._split(self._parser.feed(text))

    def finish(self, text: str, is_cut: bool) -> str:
        """Returns what is left outside of reasoning and calls. `text`: the answer's last."""
        if self._reasoning_reader is not None:
            reasoning, text = self._reasoning_reader.finish(text)
            self._reasoning.append(reasoning)
        if self._parser is None:
            return text
        return self._split(self._parser.feed(text)) + self._split(self._parser.finish(is_cut))

    def take_reasoning(self) -> str:
        """Returns the reasoning found since the last time."""
        reasoning, self._reasoning = "".join(self._reasoning), []
        return reasoning

    def take_deltas(self) -> list[ToolCallDelta]:
        """Returns the parts of calls found since the last time."""
        deltas, self._deltas = self._deltas, []
        return [each for each in merged(deltas) if isinstance(each, ToolCallDelta)]

    def _split(self, found: list[Delta]) -> str:
        self._deltas += (each for each in found if isinstance(each, ToolCallDelta))
        return "".join(each.text for each in found if isinstance(each, ContentDelta))
