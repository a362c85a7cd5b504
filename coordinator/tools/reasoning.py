"""Reasoning: what some models write before their answer, between marks that their chat template shows.

Reasoning is part of the output's grammar, not a mode that is switched on and off: a draft may cross its end.
"""

import enum
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coordinator.reasoning_marks import ReasoningMarks
from coordinator.tokenizer import Tokenizer
from paceline.grammar import Rules

_WHITE = " \t\r\n"
# No text has lone surrogates.
_FIRST_CHARACTER = 0xD800
# Tokens at a prompt's end that may open reasoning or close it.
_MAX_OPENING_TOKENS = 32


@dataclass(frozen=True, slots=True)
class CodedMarks:
    """`ReasoningMarks` in which each token with a name of its own is one character that no text has.

    So a mark that a model spells in other tokens does not match. A mark that is no token is text here too.
    """

    begin: str
    end: str
    answer_begin: str
    answer_end: str
    # Each token's character, and the text that a character stands for, which is none for special tokens.
    characters: Mapping[int, str]
    written: Mapping[int, str]

    @classmethod
    def of(cls, marks: ReasoningMarks, tokenizer: Tokenizer) -> "CodedMarks":
        texts = (marks.begin, marks.end, marks.answer_begin, marks.answer_end)
        names = {str(each) for each in tokenizer.backend.get_added_tokens_decoder().values()}
        # A mark may be a token of the vocabulary that was not added to it.
        names |= {each for each in texts if each and tokenizer.id_of(each) is not None}
        pattern = re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or "(?!)")
        found = list(dict.fromkeys(name for each in texts for name in pattern.findall(each)))
        coded = {name: chr(_FIRST_CHARACTER + at) for at, name in enumerate(found)}
        begin, end, answer_begin, answer_end = (pattern.sub(lambda name: coded[name[0]], each) for each in texts)
        ids = {name: token for name in found if (token := tokenizer.id_of(name)) is not None}
        written = {ord(coded[name]): "" if tokenizer.special_id(name) is not None else name for name in found}
        return cls(begin, end, answer_begin, answer_end, {ids[name]: coded[name] for name in found}, written)

    def is_opened_by(self, prompt: Sequence[int], tokenizer: Tokenizer) -> bool | None:
        """Returns whether the prompt opens reasoning at its end; None if it closes one, so that none follows."""
        pieces: list[str] = []
        texts: list[int] = []
        for token in prompt[-_MAX_OPENING_TOKENS:]:
            texts.append(token)
            if token in self.characters:
                pieces += tokenizer.decode(texts[:-1], skip_special_tokens=False), self.characters[token]
                texts.clear()
        text = "".join((*pieces, tokenizer.decode(texts, skip_special_tokens=False))).rstrip(_WHITE)
        before = text.removesuffix(self.end)
        # A mark that also opens a message stands before any answer.
        opens_message = len(self.end) > 1 and self.is_token(self.end[0])
        is_closed = before != text and (not opens_message or before.rstrip(_WHITE).endswith(self.begin))
        if is_closed or (self.answer_begin and text.endswith(self.answer_begin)):
            return None
        return text.endswith(self.begin)

    def is_token(self, character: str) -> bool:
        return character in self.characters.values()

    def plain(self, text: str) -> str:
        """Returns a text as clients see it."""
        return text.translate(self.written)

    def lark(self, mark: str) -> str:
        """Returns a mark as part of a grammar's rule."""
        tokens = {character: token for token, character in self.characters.items()}
        parts = re.findall("[\ud800-\udfff]|[^\ud800-\udfff]+", mark)
        return " ".join(f"<[{tokens[each]}]>" if each in tokens else json.dumps(each) for each in parts)


def with_reasoning(answer: Rules, marks: CodedMarks, is_opened: bool, eos_token_ids: Sequence[int]) -> list[Rules]:
    """Puts reasoning before an answer. Unless it is already open, it is optional.

    If a begin mark could also start an answer, it starts reasoning: the library prefers the first alternative.
    """
    # Written rules are known by their name.
    name = answer.get("name", "answer")
    begin, end = marks.lark(marks.begin), marks.lark(marks.end)
    framed = f"@{name}"
    if marks.answer_begin:
        closing = f"(SPACE {marks.lark(marks.answer_end)})?" if marks.answer_end else ""
        framed = f"({marks.lark(marks.answer_begin)} SPACE)? {framed} {closing}".rstrip()
    lines = [f"start: {'reasoning' if is_opened else f'({begin} reasoning)?'} {framed}"]
    tokens = {character: token for token, character in marks.characters.items()}
    if marks.end[0] in tokens:
        excluded = [tokens[mark[0]] for mark in (marks.begin, marks.end) if mark[0] in tokens]
        lines.append(f"reasoning: <[^{','.join(map(str, (*excluded, *eos_token_ids)))}]>* {end} SPACE")
    else:
        # Up to the first end mark.
        lines += ["reasoning: upto_end SPACE", "TEXT: /(?s:.*)/", f"upto_end[lazy]: TEXT {end}"]
    return [{"lark_grammar": "\n".join((*lines, "SPACE: /[ \\n]{0,4}/"))}, {**answer, "name": name}]


class Stage(enum.Enum):
    BEFORE, INSIDE, AFTER, ANSWER, OVER = range(5)


class ReasoningReader:
    """Splits an answer into its reasoning and the rest, token by token.

    Marks that are tokens are found by id, as in the grammar. A mark that does not delimit reasoning at the answer's beginning
    is text. White space around reasoning belongs to neither.
    """

    def __init__(self, marks: CodedMarks, is_opened: bool | None) -> None:
        """`is_opened`: by the prompt; None: no reasoning can follow."""
        self._marks = marks
        self._stage = {True: Stage.INSIDE, False: Stage.BEFORE, None: Stage.ANSWER}[is_opened]
        self._has_reasoning = False
        # Text that may be the beginning of a mark, or white space that belongs to what follows it.
        self._held = ""
        # More white space after it: joined once, as a model may write it without end.
        self._white: list[str] = []
        # Whether a mark began the answer, maybe in the prompt.
        self._is_framed = is_opened is None

    @property
    def _answer_end(self) -> str:
        """Returns the mark that may end the answer. One that is a token may do so even if the prompt has the answer's beginning."""
        mark = self._marks.answer_end
        return mark if self._is_framed or self._marks.is_token(mark[:1]) else ""

    @property
    def is_inside(self) -> bool:
        return self._stage is Stage.INSIDE

    def is_mark(self, token: int) -> bool:
        """Returns whether the token may be part of a mark that comes next, once all text before it is read."""
        character = self._marks.characters.get(token)
        return character is not None and (self._stage is not Stage.ANSWER or character in self._marks.answer_end)

    def read(self, token: int, text: str) -> tuple[str, str]:
        """Returns what is final of the reasoning and of the answer. `text`: all that is not read yet, if the token is a mark."""
        if not self.is_mark(token):
            return self._advance(text)
        marks, character = self._marks, self._marks.characters[token]
        name = marks.plain(character)
        reasoning, answer = self._advance(text.removesuffix(name))
        expected = {
            Stage.BEFORE: marks.begin + marks.answer_begin, Stage.INSIDE: marks.end, Stage.AFTER: marks.answer_begin,
            Stage.ANSWER: marks.answer_end, Stage.OVER: "",
        }  # fmt: skip
        more_reasoning, more = self._advance(character if character in expected[self._stage] else name)
        return reasoning + more_reasoning, answer + more

    def finish(self, text: str) -> tuple[str, str]:
        """Returns what the end of the text decides. `text`: the answer's last."""
        reasoning, answer = self._advance(text)
        held, self._held = "".join((self._held, *self._white)), ""
        if self._stage is Stage.INSIDE:
            return reasoning + self._shown(held.rstrip(_WHITE)), answer
        if self._answer_end and held.strip(_WHITE) == self._answer_end:
            held = ""
        return reasoning, answer + self._marks.plain(held)

    def _advance(self, text: str) -> tuple[str, str]:
        if self._held.endswith(tuple(_WHITE)) and not text.strip(_WHITE):
            self._white.append(text)
            return "", ""
        text, self._held = "".join((self._held, *self._white, text)), ""
        self._white.clear()
        reasoning = ""
        if self._stage is Stage.BEFORE:
            text = self._before(text)
        if self._stage is Stage.INSIDE:
            reasoning, text = self._inside(text)
        if self._stage is Stage.AFTER:
            text = self._after(text)
        return reasoning, self._answer(text) if self._stage is Stage.ANSWER else ""

    def _before(self, text: str) -> str:
        """Returns what follows the reasoning's begin mark, or all if an answer begins without reasoning."""
        shown = text.lstrip(_WHITE)
        if shown.startswith(self._marks.begin):
            self._stage = Stage.INSIDE
            return shown.removeprefix(self._marks.begin)
        if self._marks.answer_begin and shown.startswith(self._marks.answer_begin):
            self._stage = Stage.AFTER
            return shown
        if any(mark.startswith(shown) for mark in (self._marks.begin, self._marks.answer_begin)):
            self._held = text
            return ""
        self._stage = Stage.ANSWER
        return text

    def _inside(self, text: str) -> tuple[str, str]:
        """Returns reasoning, and what follows its end mark."""
        reasoning, end, rest = text.partition(self._marks.end)
        if end:
            self._stage = Stage.AFTER
            return self._shown(reasoning.rstrip(_WHITE)), rest
        kept = _without_beginning(text, self._marks.end)
        self._held = text[len(kept) :]
        return self._shown(kept), ""

    def _shown(self, reasoning: str) -> str:
        if not self._has_reasoning:
            reasoning = reasoning.lstrip(_WHITE)
            self._has_reasoning = bool(reasoning)
        return self._marks.plain(reasoning)

    def _after(self, text: str) -> str:
        """Returns the answer's beginning."""
        mark = "" if self._is_framed else self._marks.answer_begin
        text = text.lstrip(_WHITE)
        if mark and text.startswith(mark):
            self._is_framed, mark, text = True, "", text.removeprefix(mark).lstrip(_WHITE)
        if mark.startswith(text):
            self._held = text
            return ""
        self._stage = Stage.ANSWER
        return text

    def _answer(self, text: str) -> str:
        mark = self._answer_end
        kept = text
        if self._marks.is_token(mark[:1]):
            answer, _, rest = text.partition(mark)
            # The message may end with a mark of its own, like the answer.
            if rest.lstrip(_WHITE).startswith(mark[0]):
                self._stage = Stage.OVER
                return self._marks.plain(answer.rstrip(_WHITE))
        if mark:
            before = text.rstrip(_WHITE)
            kept = before.removesuffix(mark).rstrip(_WHITE) if before.endswith(mark) else _without_beginning(text, mark)
        self._held = text[len(kept) :]
        return self._marks.plain(kept)


def _without_beginning(text: str, mark: str) -> str:
    """Returns a text without white space at its end, and without what may be a beginning of `mark` there."""
    num = next((num for num in range(min(len(mark) - 1, len(text)), 0, -1) if text.endswith(mark[:num])), 0)
    return text[: len(text) - num].rstrip(_WHITE)
