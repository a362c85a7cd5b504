"""What a whole answer's form must provide, where reasoning, content and calls are not marked within one text."""

from collections.abc import Sequence
from typing import Any, Protocol

from coordinator.answer_reader import AnswerReader
from coordinator.tools.call_grammar import CallGrammar
from coordinator.tools.offered_tools import Tools
from paceline.grammar import Rules


class AnswerFormat(Protocol):
    # A few words for people.
    description: str

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
        """Returns the rules of a whole answer. `answer`: the rules of calls if there are `tools`, and else of the content."""

    def reader(
        self, tools: Tools | None, opens_reasoning: bool | None, request_id: str, choice: int
    ) -> AnswerReader | None:
        """Returns the reader of sample `choice`; None if all of it is text."""
