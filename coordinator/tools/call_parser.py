"""Reads tool calls in the text that a model writes, as it comes."""

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from coordinator.tools.call_formats import CallFormat
from coordinator.tools.json_scanner import SPACE, JsonScanner, Reading
from coordinator.tools.offered_tools import Tools
from paceline.results import ToolCallDelta

FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z_]+")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_WHITE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


# A call's first delta has its id and name; the others have pieces of its arguments, as the model wrote them.
Delta = ContentDelta | ToolCallDelta


class CallParser(JsonScanner):
    """Splits one message into content and calls; what is not a call of one of the tools is content.

    It takes special tokens as text. White space around calls belongs to neither. `has_whole_call`: the arguments of at
    least one call are complete. Ids depend on `request_id` and `choice`, the sample's index, alone: they are the same if
    another coordinator resumes the request.
    """

    def __init__(self, tools: Tools, call_format: CallFormat, request_id: str, choice: int = 0) -> None:
        super().__init__()
        self.has_whole_call = False
        self._names = tools.names
        self._format = call_format
        self._id_prefix = f"{request_id}/{choice}"
        self._plain = re.compile(f"[^{re.escape(call_format.begin[0] + FENCE[0])}]+")
        self._num_calls = 0
        self._follows_call = False
        # Text taken that may turn out to be part of a call.
        self._held: list[str] = []
        # White space that belongs to the content if content follows.
        self._space: list[str] = []
        self._streams_arguments = False
        self._is_cut = False
        self._deltas: list[Delta] = []
        self._reading = self._message()

    def feed(self, piece: str) -> list[Delta]:
        """Returns what is decided with this piece."""
        return self._advance(piece, is_whole=False)

    def finish(self, is_cut: bool = False) -> list[Delta]:
        """Returns what the end of the text decides.

        `is_cut`: `max_tokens` cut it, so an incomplete call, or the beginning of a begin marker, is not content.
        """
        self._is_cut = is_cut
        return self._advance("", is_whole=True)

    def take(self, text: str) -> None:
        if self._streams_arguments:
            self._deltas.append(ToolCallDelta(self._num_calls - 1, arguments=text))
        else:
            self._held.append(text)

    def _advance(self, piece: str, is_whole: bool) -> list[Delta]:
        self.grow(piece, is_whole)
        next(self._reading, None)
        deltas, self._deltas = self._deltas, []
        return list(merged(deltas))

    def _message(self) -> Reading[None]:
        yield from self._beginning()
        self._release()
        while (yield from self.peek()):
            if (yield from self.take_next(self._format.begin)):
                yield from self._calls()
                if self._is_cut:
                    self._drop_frame()
            elif self._format.is_loose and self._num_calls == 0 and (yield from self.take_next(FENCE)):
                yield from self._fenced_calls()
            elif self._is_cut and self._format.begin.startswith(self._text[self._at :]):
                self._at = len(self._text)
            else:
                yield from self._take_some()
            self._release()
        if not self._follows_call and (space := "".join(self._space)):
            self._deltas.append(ContentDelta(space))

    def _beginning(self) -> Reading[None]:
        """Reads calls without a marker where the message begins."""
        yield from self.take_run(SPACE)
        character = yield from self.peek()
        if self._format.is_bare and character == "{":
            yield from self._calls()
        elif self._format.is_loose and character in ("{", "["):
            calls = yield from self._loose_calls()
            if not (yield from self.peek()):
                self._emit(calls)

    def _calls(self) -> Reading[None]:
        """Reads the calls after a begin marker."""
        separator = "" if self._format.marks_each else self._format.separator.strip()
        yield from self.take_run(SPACE)
        if self._format.is_list:
            yield from self.take_next("[")
        while True:
            is_whole = yield from (self._named_call() if self._format.arguments_marker else self._object(None))
            if not is_whole:
                return
            self._held.clear()
            yield from self.take_run(SPACE)
            if not (yield from self.take_next(separator)):
                break
            yield from self.take_run(SPACE)
        for mark in ("]" if self._format.is_list else "", self._format.end):
            yield from self.take_next(mark)
            yield from self.take_run(SPACE)
        self._held.clear()

    def _drop_frame(self) -> None:
        """Drops an incomplete call, or an incomplete mark after one, at the end of the text."""
        rest = self._text[self._at :]
        if any(mark.startswith(rest) for mark in (self._format.end, self._format.arguments_marker)):
            self._at = len(self._text)
            self._held.clear()

    def _named_call(self) -> Reading[bool]:
        """Reads a name, the arguments' marker and the arguments."""
        name = yield from self.take_run(_NAME)
        if name not in self._names or not (yield from self.take_next(self._format.arguments_marker)):
            return False
        yield from self.take_run(SPACE)
        return (yield from self.peek()) == "{" and (yield from self._stream_call(name))

    def _object(self, calls: list[tuple[str, str]] | None) -> Reading[bool]:
        """Reads a call as an object, whose members have any order; returns whether it is one.

        Adds it to `calls`, or emits it as soon as its name is known.
        """
        name = arguments = None
        mark = "{"
        while (yield from self.take_next(mark)):
            key = yield from self._key()
            if key == "name" and name is None:
                name = yield from self.take_string()
                if name not in self._names:
                    return False
                if calls is None and arguments is not None:
                    self._emit([(name, arguments)])
            elif key == self._format.arguments_key and arguments is None:
                if (yield from self.peek()) != "{":
                    return False
                if calls is None and name is not None:
                    arguments = "{}"
                    is_whole = yield from self._stream_call(name)
                else:
                    start = len(self._held)
                    is_whole = yield from self.take_value()
                    arguments = "".join(self._held[start:])
                if not is_whole:
                    return False
            elif key is None or not (yield from self.take_value()):
                return False
            yield from self.take_run(SPACE)
            mark = ","
            if (yield from self.take_next("}")):
                if name is None or arguments is None:
                    return False
                if calls is not None:
                    calls.append((name, arguments))
                return True
        return False

    def _key(self) -> Reading[str | None]:
        """Takes a key and its colon."""
        yield from self.take_run(SPACE)
        key = yield from self.take_string()
        yield from self.take_run(SPACE)
        if key is None or not (yield from self.take_next(":")):
            return None
        yield from self.take_run(SPACE)
        return key

    def _stream_call(self, name: str) -> Reading[bool]:
        self._open(name)
        self._streams_arguments = True
        is_whole = yield from self.take_value()
        self._streams_arguments = False
        self.has_whole_call |= is_whole
        return is_whole

    def _fenced_calls(self) -> Reading[None]:
        """Reads calls after a fence, unless another fence or a marker follows."""
        yield from self.take_run(_LANGUAGE)
        yield from self.take_run(SPACE)
        calls = yield from self._loose_calls()
        if not calls or (not (yield from self.take_next(FENCE)) and (yield from self.peek())):
            return
        start = len(self._held)
        while (yield from self.peek()) and not (yield from self.sees(FENCE, self._format.begin)):
            yield from self._take_some()
        if not (yield from self.peek()):
            rest = "".join(self._held[start:])
            self._emit(calls)
            self._held.append(rest)

    def _loose_calls(self) -> Reading[list[tuple[str, str]]]:
        """Reads objects, one after the other or in a list; returns none if it is anything else."""
        calls: list[tuple[str, str]] = []
        is_list = yield from self.take_next("[")
        while True:
            yield from self.take_run(SPACE)
            # Qwen 2.5's chat templates show calls in doubled braces.
            is_doubled = yield from self.sees("{{")
            if is_doubled:
                yield from self.take_next("{")
            if not (yield from self._object(calls)) or (is_doubled and not (yield from self.take_next("}"))):
                return []
            yield from self.take_run(SPACE)
            if is_list and not (yield from self.sees("]")):
                if not (yield from self.take_next(",")):
                    return []
            elif is_list or not (yield from self.sees("{")):
                break
        if is_list:
            yield from self.take_next("]")
        yield from self.take_run(SPACE)
        return calls if all(_is_json(arguments) for _, arguments in calls) else []

    def _take_some(self) -> Reading[None]:
        """Takes text up to the next character that may begin a marker, or that character."""
        if not self.take_at_hand(self._plain):
            yield from self.take_character()

    def _emit(self, calls: list[tuple[str, str]]) -> None:
        for name, arguments in calls:
            self._open(name)
            self._deltas.append(ToolCallDelta(self._num_calls - 1, arguments=arguments))
            self.has_whole_call = True

    def _open(self, name: str) -> None:
        digest = hashlib.sha256(f"{self._id_prefix}/{self._num_calls}".encode()).hexdigest()
        self._deltas.append(ToolCallDelta(self._num_calls, f"call_{digest[:24]}", name))
        self._num_calls += 1
        self._follows_call = True
        self._space.clear()
        self._held.clear()

    def _release(self) -> None:
        """What is held is content."""
        text = "".join(self._held)
        self._held.clear()
        if self._follows_call:
            text = text.lstrip(_WHITE)
        shown = text.rstrip(_WHITE)
        if not shown:
            self._space.append(text)
            return
        self._deltas.append(ContentDelta("".join((*self._space, shown))))
        self._space = [text[len(shown) :]]
        self._follows_call = False


def merged(deltas: list[Delta]) -> Iterator[Delta]:
    """Joins neighbors of the same text or call."""

    def kind(delta: Delta) -> object:
        return None if isinstance(delta, ContentDelta) else (delta.index, delta.id)

    for _, group in groupby(deltas, kind):
        first, *others = group
        if isinstance(first, ContentDelta):
            yield ContentDelta("".join(each.text for each in (first, *others) if isinstance(each, ContentDelta)))
        else:
            arguments = "".join(each.arguments for each in (first, *others) if isinstance(each, ToolCallDelta))
            yield ToolCallDelta(first.index, first.id, first.name, arguments)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
