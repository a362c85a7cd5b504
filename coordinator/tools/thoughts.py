"""Thoughts: what some models write before their answer, between <think> and </think>.

A thought is part of the output's grammar, not a mode that is switched on and off: a draft may cross its end.
"""

import enum
import json
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tokenizer import Tokenizer

BEGIN, END = "<think>", "</think>"
_WHITE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The ids of a thought's marks."""

    begin: int
    end: int

    def is_opened_by(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool | None:
        """Returns whether the prompt opens a thought at its end; None if it closes one, so that none follows."""
        last = next((each for each in reversed(prompt) if tokenizer.bytes_of(each).strip()), None)
        return None if last == self.end else last == self.begin


def find_marks(tokenizer: Tokenizer) -> ThoughtMarks | None:
    """Returns the thought marks, if both are tokens and the chat template writes them."""
    begin, end = tokenizer.id_of(BEGIN), tokenizer.id_of(END)
    if begin is None or end is None or END not in (tokenizer.chat_template or ""):
        return None
    return ThoughtMarks(begin, end)


def with_thought(grammar: str, marks: ThoughtMarks, is_opened: bool, eos_token_ids: Sequence[int]) -> str:
    """Puts a thought before a grammar. Without an opened one the thought is optional.

    If a begin mark could also start a text of `grammar`, it starts a thought: the library prefers the first alternative.
    """
    lists = json.loads(grammar) if grammar.startswith("{") else {"grammars": [{"lark_grammar": grammar}]}
    first, *others = lists["grammars"]
    body = f"<[^{','.join(map(str, (marks.begin, marks.end, *eos_token_ids)))}]>* <[{marks.end}]> SPACE"
    lark = f"start: {'thought' if is_opened else f'(<[{marks.begin}]> thought)?'} @answer\nthought: {body}\nSPACE: /[ \\n]{{0,4}}/"
    return json.dumps({**lists, "grammars": [{"lark_grammar": lark}, {**first, "name": "answer"}, *others]})


class Stage(enum.Enum):
    BEFORE, INSIDE, AFTER, ANSWER = range(4)


class ThoughtReader:
    """Splits an answer into its thought and the rest, token by token.

    Marks are found by id, as in the grammar. A mark spelled in other tokens is text, and so is one that does not delimit a
    thought at the answer's beginning. White space around a thought belongs to neither.
    """

    def __init__(self, marks: ThoughtMarks, is_opened: bool) -> None:
        """`is_opened`: by the prompt."""
        self._marks = marks
        self._stage = Stage.INSIDE if is_opened else Stage.BEFORE
        self._is_empty = True
        # White space that belongs to the thought or the answer if more of it follows.
        self._held = ""

    @property
    def is_inside(self) -> bool:
        return self._stage is Stage.INSIDE

    def is_mark(self, token: int) -> bool:
        """Returns whether the token would begin the thought, or end it."""
        return token == {Stage.BEFORE: self._marks.begin, Stage.INSIDE: self._marks.end}.get(self._stage)

    def read(self, token: int, text: str) -> tuple[str, str]:
        """Returns what is final of the thought and of the answer. `text`: all that is not read yet, if the token is a mark."""
        is_mark = self.is_mark(token)
        if self._stage is Stage.INSIDE:
            thought = self._thought(text.removesuffix(END) if is_mark else text)
            if is_mark:
                self._stage, self._held = Stage.AFTER, ""
            return thought, ""
        return "", self._around(text, is_mark)

    def finish(self, text: str) -> tuple[str, str]:
        """Returns what the end of the text decides. `text`: the answer's last."""
        if self._stage is Stage.INSIDE:
            return self._thought(text), ""
        text = self._around(text, False)
        return "", text or (self._held if self._stage is Stage.BEFORE else "")

    def _thought(self, text: str) -> str:
        """Holds back white space, which may be the thought's last."""
        self._held += text
        if self._is_empty:
            self._held = self._held.lstrip(_WHITE)
        thought = self._held.rstrip(_WHITE)
        self._held = self._held[len(thought) :]
        self._is_empty &= not thought
        return thought

    def _around(self, text: str, is_mark: bool) -> str:
        """Returns the answer's text, which is outside the thought."""
        if self._stage is Stage.ANSWER:
            return text
        if is_mark and not (self._held + text.removesuffix(BEGIN)).strip(_WHITE):
            self._stage, self._held = Stage.INSIDE, ""
            return ""
        self._held += text
        shown = self._held.lstrip(_WHITE)
        if not shown:
            return ""
        text = self._held if self._stage is Stage.BEFORE else shown
        self._stage, self._held = Stage.ANSWER, ""
        return text
