"""Asks a chat template how it writes calls, by rendering some and comparing the texts.

What is found counts only if it writes each of the probes as the template does, and reads them back: a template is never
taken for another.
"""

import json
import re
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.style import (
    KEY,
    NULL,
    ONE_TEXT,
    PROBES,
    TEXT,
    TWO_TEXTS,
    Arguments,
    Learned,
    Sample,
    common_prefix,
    common_suffix,
)
from coordinator.tools.call_arguments.styles import STYLES
from coordinator.tools.call_formats import (
    ANY_IDS,
    CALL_FORMATS,
    FUNCTION_IDS,
    ID,
    INDEX,
    SHORT_IDS,
    CallFormat,
    WrittenCall,
    told_format,
)
from coordinator.tools.read_back import reads_back
from paceline.errors import InvalidArgument

Messages = list[dict[str, Any]]
Render = Callable[[Messages, dict[str, Any]], str]

_NAMES = ("probe_first", "probe_other")
# Some templates take ids of 9 letters and digits only.
_IDS = ("paceline0", "paceline1")
_LONG_ID = "call_0123456789abcdef01234567"
_CONTENT = "\u00a4paceline text\u00a4"
_USER = {"role": "user", "content": "x"}
# Not the tool that is called: its name would stand in the prompt too.
_TOOL = {"name": "paceline_tool", "description": "x", "parameters": {"type": "object", "properties": {}}}
_LAST_MARK = re.compile(r"<[^<>]*>\s*\Z")
_TURN_END = re.compile(r"</s>|eom|eot|im_end|end_of|END_OF|end▁of|tool_response")
_LAST_DIGITS = re.compile(r"(?<!\d)\d+\Z")
_MARK = re.compile(r"<[^<>\s]+>")
_THINKING = re.compile(r"\s*(<think>\s*</think>|<\|START_THINKING\|>.*?<\|END_THINKING\|>)\s*", re.DOTALL)
# What jinja makes of a quote where a template takes arguments for text.
_ESCAPED = "&#"
LLAMA_MARK = "<|python_tag|>"


class FoundCalls(NamedTuple):
    """What a template has been found to do with calls.

    format: None if it is unknown, with the problem. drops_calls: the template writes none.
    """

    format: CallFormat | None
    problem: str = ""
    drops_calls: bool = False

    def known(self) -> CallFormat:
        """Raises InvalidArgument if the format is unknown."""
        if self.format is None:
            raise InvalidArgument(
                "tools",
                f"are not supported with the chat template of this model: {self.problem}; serve the model with a template "
                "of your own (chat_template.jinja in its folder) that writes calls in a known form, or ask with tool_choice none",
            )
        return self.format


def find_calls(render: Render, chat_template: str, vocabulary: Container[str]) -> FoundCalls:
    """Asks a template that renders tools how it writes calls, and else looks for marks that it tells the model of."""
    try:
        found = probe_calls(render)
    except NotFound as error:
        return FoundCalls(None, str(error))
    if found is not None:
        return FoundCalls(found)
    told, refusal = told_format(chat_template, vocabulary), _refusal(render)
    problem = (
        f"it refuses a call: {refusal}"
        if refusal
        else "it renders tools and no calls, and shows no mark of a form that is known"
    )
    return FoundCalls(told, "" if told is not None else problem, drops_calls=not refusal)


def _refusal(render: Render) -> str:
    """Returns why a template refuses a call; "" if it takes one."""
    probes = [_Probe(render, way) for way in _WAYS]
    return "" if any(each.render([(_NAMES[0], ONE_TEXT)]) is not None for each in probes) else probes[0].refusal


class NotFound(Exception):
    """What a template writes is no form that is known."""


class _Way(NamedTuple):
    """How a template wants to be given calls."""

    ids: str = ANY_IDS
    takes_text: bool = False


_WAYS = (_Way(), _Way(takes_text=True), _Way(FUNCTION_IDS), _Way(FUNCTION_IDS, takes_text=True))


def probe_calls(render: Render) -> CallFormat | None:
    """Returns how a template writes calls; None if it drops them or refuses to be asked. Raises NotFound."""
    problem: NotFound | None = None
    for way in _WAYS:
        probe = _Probe(render, way)
        text = probe.render([(_NAMES[0], ONE_TEXT)])
        try:
            if text is None or KEY not in text or TEXT not in text:
                continue
            if _NAMES[0] not in text:
                problem = problem or NotFound("it writes no names of tools into calls")
                continue
            return probe.find()
        except NotFound as error:
            problem = problem or error
            if not way.takes_text and text is not None and str(ONE_TEXT) not in text and _ESCAPED not in text:
                break
    if problem is not None:
        raise problem
    return None


class _Probe:
    def __init__(self, render: Render, way: _Way) -> None:
        self._render = render
        self._way = way
        # Why the template has refused the last chat.
        self.refusal = ""

    def render(
        self, calls: Sequence[tuple[str, Arguments]], content: str = "", ids: Sequence[str] = _IDS, **more: str
    ) -> str | None:
        """Returns a chat whose last message has these calls; None if the template refuses it."""
        message: dict[str, Any] = {"role": "assistant", "content": content, **more}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"functions.{name}:{at}" if self._way.ids == FUNCTION_IDS else ids[at],
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False) if self._way.takes_text else arguments},
                }
                for at, (name, arguments) in enumerate(calls)
            ]  # fmt: skip
        try:
            return self._render([_USER, message], {"tools": [{"type": "function", "function": _TOOL}]})
        except InvalidArgument as error:
            self.refusal = error.problem
            return None

    def find(self) -> CallFormat:
        """Raises NotFound."""
        before, samples = self._samples()
        learned = self._learn(before, samples)
        found = self._split(before, learned)
        found = replace(found, ids=self._ids(), **self._around_text(found))
        self._check(found)
        return _named(found)

    def _text_of(self, calls: Sequence[tuple[str, Arguments]]) -> str | None:
        """Returns what the template writes for calls: what differs from a message of text alone."""
        if (text := self.render(calls)) is None:
            return None
        start = max(len(common_prefix(text, each)) for each in (self._plain, self._prompt))
        end = len(text) - len(common_suffix(text[start:], self._plain[self._plain.index(_CONTENT) :]))
        written = text[start:end]
        written = written[len(self._reasoning_before) :] if written.startswith(self._reasoning_before) else written
        last = _LAST_MARK.search(written)
        if last is not None and _TURN_END.search(last[0]):
            written = written[: last.start()]
        return written.replace(_IDS[0], ID).replace(_IDS[1], ID)

    @cached_property
    def _plain(self) -> str:
        if (text := self.render([], _CONTENT)) is None or _CONTENT not in text:
            raise NotFound("it refuses or drops an assistant's text")
        return text

    @cached_property
    def _prompt(self) -> str:
        """Returns a chat that ends where the assistant's answer begins."""
        try:
            return self._render(
                [_USER], {"tools": [{"type": "function", "function": _TOOL}], "add_generation_prompt": True}
            )
        except InvalidArgument:
            return ""

    @cached_property
    def _reasoning_before(self) -> str:
        """Returns the marks of reasoning that is empty, where a template writes them before calls only."""
        text = self.render([(_NAMES[0], ONE_TEXT)])
        assert text is not None
        found = _THINKING.match(text, max(len(common_prefix(text, each)) for each in (self._plain, self._prompt)))
        return found[0] if found else ""

    def _samples(self) -> tuple[str, list[Sample]]:
        """Returns what stands before a call's name, and what follows that for each of the probes."""
        befores, samples = set(), []
        for arguments in PROBES:
            text = self._text_of([(_NAMES[0], arguments)])
            if text is None or _NAMES[0] not in text:
                raise NotFound(f"it refuses or drops a call with the arguments {json.dumps(arguments)}")
            if _ESCAPED in text:
                raise NotFound("it escapes the arguments for HTML")
            before, _, after = text.partition(_NAMES[0])
            befores.add(before)
            samples.append(Sample(arguments, after))
        if len(befores) > 1:
            raise NotFound("what it writes before a call's name depends on the arguments")
        before = self._without_text_marks(befores.pop())
        if "<|channel|>" in before + samples[0].text:
            raise NotFound("it writes calls into channels")
        return before, samples

    def _without_text_marks(self, before: str) -> str:
        """Leaves out marks around a message's text, where it stands between the answer's beginning and the calls."""
        text = self.render([(_NAMES[0], ONE_TEXT)], _CONTENT) or ""
        opening, _, closing = text.partition(_NAMES[0])[0].partition(_CONTENT)
        around = before.removesuffix(closing)
        if not closing or around == before or not around.strip() or not opening.endswith(around):
            return before
        # A mark around the text has a counterpart.
        pairs = (around.strip().replace("start", "end"), around.strip().replace("<", "</", 1))
        return next((closing.removeprefix(each) for each in pairs if closing.startswith(each)), closing)

    def _learn(self, before: str, samples: list[Sample]) -> Learned:
        for style in STYLES:
            learned = style.learn(samples)
            if learned is not None and all(
                learned.middle + learned.style.write(each.arguments) + learned.tail == each.text
                # Some templates leave out what is null.
                or (each.arguments is NULL and each.text == samples[0].text)
                for each in samples
            ):
                return learned
        raise NotFound(f"it writes arguments in no form that is known, as in {before}{_NAMES[0]}{samples[1].text}")

    def _split(self, before: str, learned: Learned) -> CallFormat:
        """Tells what stands around each call from what stands around all of them."""
        middle, style, end = learned
        lead = before[: len(before) - len(before.lstrip())]
        before = before.lstrip()
        alone = CallFormat("", before, middle, end, style, lead=lead, is_single=True)
        two = self._text_of([(_NAMES[0], ONE_TEXT), (_NAMES[1], TWO_TEXTS)])
        first = f"{lead}{before}{_NAMES[0]}{middle}{style.write(ONE_TEXT)}"
        if two is None or _NAMES[1] not in two:
            return alone
        _, has_first, others = two.partition(first)
        if not has_first:
            raise NotFound("it writes a call otherwise where another one follows")
        between, _, second = others.partition(_NAMES[1])
        found = second.find(style.write(TWO_TEXTS))
        middle, first_index = _with_index(middle, second[:found]) if found >= 0 else (middle, 0)
        tail = common_prefix(between, end)
        head = common_suffix(before, between[len(tail) :])
        calls_begin, separator = before[: len(before) - len(head)], between[len(tail) : len(between) - len(head)]
        first_digits, second_digits = _LAST_DIGITS.search(calls_begin), _LAST_DIGITS.search(separator)
        if first_digits and second_digits and int(second_digits[0]) == int(first_digits[0]) + 1:
            first_index = int(first_digits[0])
            calls_begin, separator = calls_begin[: first_digits.start()], separator[: second_digits.start()]
            inner = common_suffix(calls_begin, separator)
            head = f"{inner}{INDEX}{head}"
            calls_begin, separator = (
                calls_begin[: len(calls_begin) - len(inner)],
                separator[: len(separator) - len(inner)],
            )
        calls_end = end[len(tail) :]
        if not calls_begin.strip() and _MARK.fullmatch(calls_end.strip()):
            # Nothing opens what this mark would close: it ends the turn, as GLM's <|observation|> does.
            calls_end = ""
        # White space before each call stands between them.
        space = head[: len(head) - len(head.lstrip())]
        return replace(
            alone, head=head.lstrip(), middle=middle, tail=tail, calls_begin=calls_begin + space, calls_end=calls_end,
            separator=separator + space, first_index=first_index, is_single=False,
        )  # fmt: skip

    def _ids(self) -> str:
        if self._way.ids == FUNCTION_IDS:
            return FUNCTION_IDS
        return SHORT_IDS if self.render([(_NAMES[0], ONE_TEXT)], ids=(_LONG_ID,)) is None else ANY_IDS

    def _around_text(self, found: CallFormat) -> dict[str, Any]:
        """Returns what stands between a message's text and its calls, if the text comes out before them."""
        text = self.render([(_NAMES[0], ONE_TEXT)], _CONTENT)
        written = found.write([WrittenCall(_NAMES[0], ONE_TEXT, _IDS[0])])
        if text is None or _CONTENT not in text:
            return {}
        gap, has_calls, _ = text.partition(_CONTENT)[2].partition(written)
        return {"text_separator": gap} if has_calls and not gap.strip() else {}

    def _check(self, found: CallFormat) -> None:
        """Raises NotFound unless the format writes calls as the template does, and they can be read back."""
        if found.begin and found.begin in self._plain.partition(_CONTENT)[2]:
            raise NotFound(f"its calls begin with {found.begin}, with which a text ends too")
        if found.is_bare and not found.opening:
            raise NotFound("nothing tells its calls from text")
        chats: list[list[tuple[str, Arguments]]] = [[(_NAMES[0], each)] for each in PROBES if each is not NULL]
        if not found.is_single:
            chats += [
                [(_NAMES[0], ONE_TEXT), (_NAMES[1], TWO_TEXTS)],
                [(_NAMES[0], {}), (_NAMES[1], {}), (_NAMES[0], ONE_TEXT)],
            ]
        for chat in chats:
            text = self.render(chat, ids=(*_IDS, "paceline2"))
            written = found.write(
                [
                    WrittenCall(name, arguments, ids)
                    for (name, arguments), ids in zip(chat, (*_IDS, "paceline2"), strict=False)
                ]
            )
            if text is None or found.lead + written not in text:
                raise NotFound(
                    f"it writes {len(chat)} calls in no form that is known, as {json.dumps(text or '')[-200:]}"
                )
            if not reads_back(found, chat, found.lead + written):
                raise NotFound(f"its calls can't be read back, as {json.dumps(written)[-200:]}")


def _with_index(first: str, second: str) -> tuple[str, int]:
    """Returns a text with a place for its number, if another call's is the same but for the next number."""
    for found in re.finditer(r"\d+", first):
        number = int(found[0])
        if first[: found.start()] + str(number + 1) + first[found.end() :] == second:
            return first[: found.start()] + INDEX + first[found.end() :], number
    return first, 0


def _named(found: CallFormat) -> CallFormat:
    """Gives a format its name, and what models that write it do besides."""
    known = next((each for each in CALL_FORMATS if found.has_shape_of(each)), None)
    if known is not None:
        return replace(found, name=known.name, is_loose=known.is_loose)
    if (
        found.is_single
        and found.is_bare
        and found.arguments == CALL_FORMATS[-1].arguments
        and found.opening == CALL_FORMATS[-1].opening
        and found.middle == CALL_FORMATS[-1].middle
    ):
        return replace(found, name="llama", separator="; ", optional_begin=LLAMA_MARK)
    arguments = "{}" if isinstance(found.arguments, JsonArguments) else found.arguments.description
    return replace(found, name=re.sub(r"\s+", "", f"{found.opening}NAME{found.middle}{arguments}"))
