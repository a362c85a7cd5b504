"""The marks of reasoning: texts that a chat template writes around it, found by rendering probes.

Most templates render the reasoning of the last turn. Some cut all reasoning from the history: their marks occur in the prompt
that opens a turn, in what the model is told, or only in the source, where an answer is split by them.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise, permutations, takewhile
from typing import Any

from paceline.errors import InvalidArgument

Messages = list[dict[str, Any]]
# Takes messages, template options, and whether the text ends with what opens the assistant's turn. Raises InvalidArgument.
Render = Callable[[Messages, dict[str, Any], bool], str]

# Where a message's reasoning may be: under a key of its own, or in a content of several parts.
PARTS = "content"
KEYS = ("reasoning_content", "reasoning", "thinking", "thought", "tool_plan", PARTS)
# Words that no filter of a template changes.
_QUESTION, _REASONING, _ANSWER, _TOOL = "pacelineq", "paceliner", "pacelinea", "pacelinet"
# Without options a template may leave reasoning out; with others the prompt closes it.
_OPTIONS: tuple[dict[str, Any], ...] = (
    {}, {"enable_thinking": True}, {"thinking": True}, {"reasoning": True}, {"reasoning_effort": "high"},
)  # fmt: skip
_OFF: tuple[dict[str, Any], ...] = ({"enable_thinking": False}, {"thinking": False}, {"reasoning": False})
_USER = {"role": "user", "content": _QUESTION}
_CALL = {"id": "paceline0", "type": "function", "function": {"name": _TOOL, "arguments": {"x": 1}}}
_SAID = {"role": "assistant", "content": _ANSWER}
# Some templates let a model plan only where it has documents to look through.
_DOCUMENTS = {"documents": [{"title": "x", "text": "x"}]}
# Some templates render reasoning only where calls follow it, or their results.
_SHAPES: tuple[tuple[dict[str, Any], Messages], ...] = (
    ({}, []),
    ({"tool_calls": [_CALL]}, []),
    ({"tool_calls": [_CALL]}, [{"role": "tool", "content": "x", "tool_call_id": "paceline0", "name": _TOOL}]),
)
# What an answer is split by or searched for.
_SPLIT = re.compile(r"""split\(\s*(['"])(?P<split>[^'"\n]+)\1|(['"])(?P<within>[^'"\n]+)\3\s+(?:not\s+)?in\s""")
# Literals that may be marks, and marks after reasoning that may end it.
_MAX_MARKS = 16
_MARK = re.compile(r"<[^<>\s]+>|\[[^\[\]\n]+\]")
_UNCLOSED = re.compile(r"[<\[][^<>\[\]]*$")
_QUOTED = re.compile(r"""['"]\w""")
_CUT_WORD = re.compile(r"(?<![\w=])[\w=]+$")
_NAME_OF_REASONING = re.compile(r"think|thought|reason", re.IGNORECASE)
_NAME_OF_ANSWER = re.compile(r"response|answer", re.IGNORECASE)
_TAG = re.compile(r"<(/?)(\w+)>")
# As in "Write your thoughts after 'Here is my thought process:'".
_PHRASE = re.compile(r"'([^':\n]+:)'")
# Words that turn on reasoning whose marks the template never shows.
_UNSHOWN = {"Enable deep thinking subroutine": ("<think>", "</think>")}
# What tells an end mark from its begin mark.
_OPPOSITES = (("</", "<"), ("[/", "["), ("END", "START"), ("END", "BEGIN"), ("close", "open"))


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The texts around reasoning, without white space at their ends.

    `answer_begin`, `answer_end`: around the answer, if anything is. `key`: what the template reads a message's reasoning
    from; "" if it renders none.
    """

    begin: str
    end: str
    answer_begin: str = ""
    answer_end: str = ""
    key: str = ""


def find_marks(render: Render, source: str) -> ReasoningMarks | None:
    """Returns the marks that a template shows, or else those that its source names."""
    probe = _Probe(render, source)
    searches = (probe.rendered, probe.opened, probe.told, probe.named)
    return next((found for search in searches for found in search()), None)


def placed(message: dict[str, Any], reasoning: str, key: str) -> dict[str, Any]:
    """Returns an assistant's message with its reasoning where the template reads it."""
    if key != PARTS:
        return {**message, key: reasoning}
    texts = [{"type": "text", "text": message["content"]}] if message["content"] else []
    return {**message, PARTS: [{"type": "thinking", "thinking": reasoning}, *texts]}


def splits(messages: Messages, marks: ReasoningMarks) -> list[Messages]:
    """Returns the messages with reasoning taken out of the assistants' contents, in each way that templates do; [] without any."""
    if not any(_holds_reasoning(each, marks) for each in messages):
        return []
    return [
        [_split(each, marks, keeps, strips) if _holds_reasoning(each, marks) else each for each in messages]
        for keeps in ((True, False) if marks.key else (False,))
        for strips in ("\n", "", None)
    ]


def _holds_reasoning(message: dict[str, Any], marks: ReasoningMarks) -> bool:
    content = message.get("content")
    is_plain = message["role"] == "assistant" and "reasoning_content" not in message
    return is_plain and isinstance(content, str) and marks.end in content


def _split(message: dict[str, Any], marks: ReasoningMarks, keeps: bool, stripped: str | None) -> dict[str, Any]:
    """`stripped`: the characters that are taken from around both; None: all white space."""
    before, *_, answer = message["content"].split(marks.end)
    split = {**message, "content": answer.lstrip(stripped)}
    reasoning = before.rstrip(stripped).split(marks.begin)[-1].lstrip(stripped)
    return placed(split, reasoning, marks.key) if keeps else split


class _Probe:
    def __init__(self, render: Render, source: str) -> None:
        self._render, self._source = render, source

    def rendered(self) -> Iterator[ReasoningMarks]:
        """Yields the marks around reasoning that the template renders."""
        for options in (*_OPTIONS, _DOCUMENTS):
            for calls, after in _SHAPES:
                bare = {"role": "assistant", "content": _ANSWER, **calls}
                chats = ([_USER, bare, *after], [_USER, bare, *after, _USER])
                without = [self._turn(chat, options) for chat in chats]
                without.append(self._turn([_USER], options, opens_turn=True))
                for key in KEYS:
                    text = self._turn([_USER, placed(bare, _REASONING, key), *after], options)
                    if _REASONING in text and (marks := self._around(text, without, key)) is not None:
                        yield marks

    def opened(self) -> Iterator[ReasoningMarks]:
        """Yields the marks that the template writes where a turn begins."""
        ends = list(self._ends())
        for tail in self._tails():
            for end in ends:
                if begin := tail.removesuffix(end).strip():
                    yield self._marks(begin, end)
            begin, *others = tail.split()
            if _NAME_OF_REASONING.search(begin) and not _is_end(begin):
                for end in others[-1:] or _ends_of(begin):
                    yield self._marks(begin, end)

    def told(self) -> Iterator[ReasoningMarks]:
        """Yields the phrases that the model is told to write before its reasoning and before its answer."""
        for options in _OPTIONS:
            phrases = _PHRASE.findall(self._turn([_USER], options, opens_turn=True))
            for begin, end in pairwise(phrases):
                if _NAME_OF_REASONING.search(begin) and _NAME_OF_ANSWER.search(end):
                    yield self._marks(begin, end)

    def named(self) -> Iterator[ReasoningMarks]:
        """Yields the marks that the source splits answers by, or names."""
        for end in self._ends():
            for begin in _opposites(end):
                yield self._marks(begin, end)
        for begin, end in permutations(self._literals, 2):
            if self._is_cut_by(end, begin):
                yield self._marks(begin, end)
        last_ends = {tag[2]: tag.start() for tag in _TAG.finditer(self._source) if tag[1]}
        for tag in _TAG.finditer(self._source):
            if not tag[1] and _NAME_OF_REASONING.search(tag[2]) and tag.start() < last_ends.get(tag[2], 0):
                yield self._marks(tag[0], f"</{tag[2]}>")
        for words, (begin, end) in _UNSHOWN.items():
            if words in self._source:
                yield self._marks(begin, end)

    def _around(self, text: str, without: list[str], key: str) -> ReasoningMarks | None:
        """Returns what stands around the reasoning in `text`. `without`: the same turn without it, later, and its opening."""
        before, after = text.split(_REASONING, 1)
        opening = _common_opening(before, without)
        begin = before[len(opening) :].strip()
        end, lead = _up_to_answer(after), _up_to_answer(without[0][len(opening) :])
        follows = after[after.index(end) + len(end) :].lstrip().startswith(_ANSWER) if end else False
        # Every turn may have the begin mark, or an answer another frame without reasoning.
        ends = (end[: found.end()] for found in islice(_MARK.finditer(end), _MAX_MARKS))
        pairs = ((each, last) for last in ends for each in _opposites(last) if before.strip().endswith(each))
        if (pair := next(pairs, None)) is not None:
            begin, last = pair
            end, lead = last, end.removeprefix(last).strip()
        elif lead and end.endswith(lead) and end != lead:
            end = end.removesuffix(lead).strip()
        else:
            lead = ""
        answer_begin = lead if follows else ""
        begin = begin or next(self._tails(), "")
        # Parts come out as JSON or as Python writes them where the template does not know them.
        if not begin or not end or _QUOTED.search(begin):
            return None
        return ReasoningMarks(begin, end, answer_begin, self._closing(answer_begin, text), key)

    def _tails(self) -> Iterator[str]:
        """Yields what opens a turn, and does not stand before an answer in the history."""
        answers = ([_USER, _SAID], [_USER, _SAID, _USER])
        for options in (*_OPTIONS, *_OFF):
            opened = self._turn([_USER], options, opens_turn=True)
            opening = _common_opening(opened, [self._turn(chat, options) for chat in answers])
            tail = opened[len(opening) :].strip()
            named = [found.start() for found in _MARK.finditer(tail) if _NAME_OF_REASONING.search(found[0])]
            if tail := tail[min(named, default=0) :]:
                yield tail

    def _ends(self) -> Iterator[str]:
        """Yields the literals that end reasoning."""
        for end in self._literals:
            if _is_end(end) if _NAME_OF_REASONING.search(end) else self._is_cut_by(end):
                yield end

    @cached_property
    def _literals(self) -> list[str]:
        """Returns what answers are split by or searched for, other than marks of calls."""
        found = (each["split"] or each["within"] for each in _SPLIT.finditer(self._source))
        return list(dict.fromkeys(each for each in found if "tool" not in each))[:_MAX_MARKS]

    def _is_cut_by(self, end: str, begin: str = "") -> bool:
        text = self._turn([_USER, {"role": "assistant", "content": f"{begin}{_REASONING}{end}{_ANSWER}"}], {})
        return _ANSWER in text and _REASONING not in text

    def _marks(self, begin: str, end: str) -> ReasoningMarks:
        for name in ("response", "answer"):
            if f"<{name}>" in self._source and f"</{name}>" in self._source:
                return ReasoningMarks(begin, end, f"<{name}>", f"</{name}>")
        return ReasoningMarks(begin, end)

    def _closing(self, answer_begin: str, text: str) -> str:
        """Returns what stands after the answer, if it is the counterpart of what stands before."""
        after = text.rsplit(_ANSWER, 1)[-1].strip()
        return next((each for each in _ends_of(answer_begin) if after.startswith(each)), "")

    def _turn(self, chat: Messages, options: dict[str, Any], opens_turn: bool = False) -> str:
        try:
            return self._render(chat, options, opens_turn)
        except InvalidArgument:
            return ""


def _common_opening(text: str, others: list[str]) -> str:
    """Returns how a text begins, up to what not all of the others have after the question."""
    common = [each for other in others if _QUESTION in (each := _common_prefix(text, other))]
    opening = min(common, key=len, default=text)
    # Marks may begin alike, and so may words.
    return _UNCLOSED.sub("", _CUT_WORD.sub("", opening) if text[len(opening) :][:1].isalnum() else opening)


def _common_prefix(one: str, other: str) -> str:
    return "".join(left for left, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def _up_to_answer(text: str) -> str:
    return re.split(f"{_ANSWER}|{_TOOL}", text, maxsplit=1)[0].strip()


def _opposites(mark: str) -> Iterator[str]:
    """Yields the begin marks that may belong to an end mark."""
    return (mark.replace(closing, opening, 1) for closing, opening in _OPPOSITES if closing in mark)


def _is_end(mark: str) -> bool:
    return _MARK.fullmatch(mark) is not None and any(closing in mark for closing, _ in _OPPOSITES)


def _ends_of(begin: str) -> Iterator[str]:
    return (begin.replace(opening, closing, 1) for closing, opening in _OPPOSITES if opening in begin)
