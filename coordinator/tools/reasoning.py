"""Reasoning: what some models write before their answer, between <think> and </think>.

Reasoning is part of the output's grammar, not a mode that is switched on and off: a draft may cross its end.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tokenizer import Tokenizer
from paceline.grammar import Rules

BEGIN, END = "<think>", "</think>"
_WHITE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The ids of reasoning's marks."""

    begin: int
    end: int

    def is_opened_by(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool | None:
        """Returns whether the prompt opens reasoning at its end; None if it closes one, so that none follows."""
        last = next((each for each in reversed(prompt) if tokenizer.bytes_of(each).strip()), None)
        return None if last == self.end else last == self.begin


def find_marks(tokenizer: Tokenizer) -> ReasoningMarks | None:
    """Returns the reasoning marks, if both are tokens and the chat template writes them."""
    begin, end = tokenizer.id_of(BEGIN), tokenizer.id_of(END)
    if begin is None or end is None or END not in (tokenizer.chat_template or ""):
        return None
    return ReasoningMarks(begin, end)


def with_reasoning(answer: Rules, marks: ReasoningMarks, is_opened: bool, eos_token_ids: Sequence[int]) -> list[Rules]:
    """Puts reasoning before an answer. Unless it is already open, it is optional.

    If a begin mark could also start an answer, it starts reasoning: the library prefers the first alternative.
    """
    # Written rules are known by their name.
    name = answer.get("name", "answer")
    body = f"<[^{','.join(map(str, (marks.begin, marks.end, *eos_token_ids)))}]>* <[{marks.end}]> SPACE"
    lark = f"start: {'reasoning' if is_opened else f'(<[{marks.begin}]> reasoning)?'} @{name}\nreasoning: {body}\nSPACE: /[ \\n]{{0,4}}/"
    return [{"lark_grammar": lark}, {**answer, "name": name}]


class Stage(enum.Enum):
    BEFORE, INSIDE, AFTER, ANSWER = range(4)


class ReasoningReader:
    """Splits an answer into its reasoning and the rest, token by token.

    Marks are found by id, as in the grammar. A mark spelled in other tokens is text, and so is one that does not delimit
    reasoning at the answer's beginning. White space around reasoning belongs to neither.
    """

    def __init__(self, marks: ReasoningMarks, is_opened: bool) -> None:
        """`is_opened`: by the prompt."""
        self._marks = marks
        self._stage = Stage.INSIDE if is_opened else Stage.BEFORE
        self._is_empty = True
        # White space that belongs to the reasoning or the answer if more of it follows.
        self._held: list[str] = []

    @property
    def is_inside(self) -> bool:
        return self._stage is Stage.INSIDE

    def is_mark(self, token: int) -> bool:
        """Returns whether the token would begin the reasoning, or end it."""
        return token == {Stage.BEFORE: self._marks.begin, Stage.INSIDE: self._marks.end}.get(self._stage)

    def read(self, token: int, text: str) -> tuple[str, str]:
        """Returns what is final of the reasoning and of the answer. `text`: all that is not read yet, if the token is a mark."""
        is_mark = self.is_mark(token)
        if self._stage is Stage.INSIDE:
            reasoning = self._reasoning(text.removesuffix(END) if is_mark else text)
            if is_mark:
                self._stage, self._held = Stage.AFTER, []
            return reasoning, ""
        return "", self._around(text, is_mark)

    def finish(self, text: str) -> tuple[str, str]:
        """Returns what the end of the text decides. `text`: the answer's last."""
        if self._stage is Stage.INSIDE:
            return self._reasoning(text), ""
        text = self._around(text, False)
        return "", text or ("".join(self._held) if self._stage is Stage.BEFORE else "")

    def _reasoning(self, text: str) -> str:
        """Holds back white space, which may be the reasoning's last."""
        if self._is_empty:
            text = text.lstrip(_WHITE)
        reasoning = text.rstrip(_WHITE)
        if not reasoning:
            self._held.append(text)
            return ""
        self._is_empty = False
        held, self._held = self._held, [text[len(reasoning) :]]
        return "".join((*held, reasoning))

    def _around(self, text: str, is_mark: bool) -> str:
        """Returns the answer's text, which is outside the reasoning."""
        if self._stage is Stage.ANSWER:
            return text
        # What is held is white space.
        if is_mark and not text.removesuffix(BEGIN).strip(_WHITE):
            self._stage, self._held = Stage.INSIDE, []
            return ""
        shown = text.lstrip(_WHITE)
        if not shown:
            self._held.append(text)
            return ""
        text = "".join((*self._held, text)) if self._stage is Stage.BEFORE else shown
        self._stage, self._held = Stage.ANSWER, []
        return text
