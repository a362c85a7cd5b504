"""What a whole answer's form must provide, where reasoning, content and calls are not marked within one text."""

from collections.abc import Sequence
from typing import Any, Protocol

from coordinator.tools.call_grammar import CallGrammar
from coordinator.tools.offered_tools import Tools
from paceline.grammar import Rules
from paceline.results import ToolCallDelta


class AnswerReader(Protocol):
    """Splits an answer, token by token, into its reasoning, its text and its calls."""

    num_reasoning_tokens: int

    @property
    def has_whole_call(self) -> bool: ...

    def is_mark(self, token: int) -> bool:
        """Returns whether the text so far must be read before this token's."""

    def read(self, token: int, text: str) -> str:
        """Returns what stands outside of reasoning and calls. `text`: what the token completes."""

    def finish(self, text: str, is_cut: bool) -> str: ...

    def take_reasoning(self) -> str:
        """Returns the reasoning found since the last time."""

    def take_deltas(self) -> list[ToolCallDelta]:
        """Returns the parts of calls found since the last time."""


class AnswerFormat(Protocol):
    def fit(
        self, messages: list[dict[str, Any]], options: dict[str, Any]
    ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Returns the template's messages and options, rewritten where it would refuse them or drop a part."""

    def opens_reasoning(self, prompt: Sequence[int]) -> bool | None:
        """Returns whether a chat's prompt has opened reasoning, or None if none can follow."""

    def call_grammar(self, tools: Tools, answer: dict[str, Any] | None) -> CallGrammar:
        """As `make_call_grammar`."""

    def with_reasoning(
        self, answer: Rules, tools: Tools | None, opens_reasoning: bool | None, eos_token_ids: Sequence[int]
    ) -> list[Rules]:
        """Returns a whole answer's rules. `answer`: the call grammar's with `tools`, else those of the content."""

    def reader(
        self, tools: Tools | None, opens_reasoning: bool | None, request_id: str, choice: int
    ) -> AnswerReader | None:
        """Returns the reader of sample `choice`; None if all of it is text."""
