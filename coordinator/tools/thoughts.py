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
# A chat template's white space behind a mark takes fewer tokens.
_MOST_SPACES = 4


@dataclass(frozen=True, slots=True)
class ThoughtMarks:
    """The ids of a thought's marks."""

    begin: int
    end: int

    def is_opened_by(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool | None:
        """Returns whether the prompt ends in an opened thought, or None if in a closed one: then none follows."""
        for token in prompt[: -_MOST_SPACES - 1 : -1]:
            if token in (self.begin, self.end):
                return True if token == self.begin else None
            if tokenizer.bytes_of(token).strip():
                break
        return False


def find_marks(tokenizer: Tokenizer) -> ThoughtMarks | None:
    """Returns None unless the model thinks: the marks are tokens, and its chat template writes them."""
    begin, end = tokenizer.id_of(BEGIN), tokenizer.id_of(END)
    if begin is None or end is None or END not in (tokenizer.chat_template or ""):
        return None
    return ThoughtMarks(begin, end)


def with_thought(grammar: str, marks: ThoughtMarks, is_opened: bool, eos_token_ids: Sequence[int]) -> str:
    """Returns the grammar of a thought, which may be left out unless the prompt has opened it, and a text of `grammar`.

    Where both could go on with a token, the library takes what comes first: its begin mark begins a thought.
    """
    lists = json.loads(grammar) if grammar.startswith("{") else {"grammars": [{"lark_grammar": grammar}]}
    first, *others = lists["grammars"]
    body = f"<[^{','.join(map(str, (marks.begin, marks.end, *eos_token_ids)))}]>* <[{marks.end}]> SPACE"
    lark = f"start: {'thought' if is_opened else f'(<[{marks.begin}]> thought)?'} @answer\nthought: {body}\nSPACE: /[ \\n]{{0,4}}/"
    return json.dumps({**lists, "grammars": [{"lark_grammar": lark}, {**first, "name": "answer"}, *others]})


class Stage(enum.Enum):
    BEFORE, INSIDE, BEHIND, ANSWER = range(4)


class ThoughtReader:
    """Splits an answer into its thought and the rest, piece by piece.

    White space around a thought belongs to neither. A thought is at the answer's beginning: a mark anywhere else is text.
    """

    def __init__(self, is_opened: bool) -> None:
        """`is_opened`: by the prompt."""
        self._stage = Stage.INSIDE if is_opened else Stage.BEFORE
        self._is_empty = True
        # Text that may turn out to be white space or a part of a mark.
        self._held = ""

    @property
    def is_inside(self) -> bool:
        return self._stage is Stage.INSIDE

    @property
    def is_over(self) -> bool:
        return self._stage in (Stage.BEHIND, Stage.ANSWER)

    def read(self, text: str) -> tuple[str, str]:
        """Returns what is final of the thought and of the answer."""
        if self._stage is Stage.ANSWER:
            return "", text
        self._held += text
        if self._stage is Stage.BEFORE:
            shown = self._held.lstrip(_WHITE)
            if len(shown) < len(BEGIN) and BEGIN.startswith(shown):
                return "", ""
            if not shown.startswith(BEGIN):
                return "", self._answer()
            self._stage, self._held = Stage.INSIDE, shown.removeprefix(BEGIN)
        thought = self._inside() if self._stage is Stage.INSIDE else ""
        if self._stage is Stage.BEHIND:
            self._held = self._held.lstrip(_WHITE)
            if self._held:
                return thought, self._answer()
        return thought, ""

    def finish(self) -> tuple[str, str]:
        """Returns what the end of the text decides."""
        held, self._held = self._held, ""
        return (held.rstrip(_WHITE), "") if self._stage is Stage.INSIDE else ("", held)

    def _answer(self) -> str:
        self._stage, text, self._held = Stage.ANSWER, self._held, ""
        return text

    def _inside(self) -> str:
        if self._is_empty:
            self._held = self._held.lstrip(_WHITE)
        thought, mark, rest = self._held.partition(END)
        if mark:
            self._stage, self._held = Stage.BEHIND, rest
        else:
            num_marked = next(num for num in range(len(END) - 1, -1, -1) if thought.endswith(END[:num]))
            thought = thought[: len(thought) - num_marked]
        thought = thought.rstrip(_WHITE)
        if not mark:
            self._held = self._held[len(thought) :]
        self._is_empty &= not thought
        return thought
