"""Reads tool calls in the text that a model writes, as it comes."""

import enum
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_formats import ID, INDEX, SLOTS, CallFormat, Envelope
from coordinator.tools.json_scanner import SPACE, Reading
from coordinator.tools.offered_tools import Tools, parameters_of
from paceline.results import ToolCallDelta

FENCE = "```"
_LANGUAGE = re.compile(r"[A-Za-z_]+")
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
# Of a call as an object, where the format's calls are none.
_KEYS = ("name", "arguments")
_SLOT = re.compile(r"[A-Za-z0-9_-]+")
_WHITE = " \t\r\n"


@dataclass(frozen=True, slots=True)
class ContentDelta:
    text: str


# A call's first delta has its id and name; the others have pieces of its arguments, as the model wrote them.
Delta = ContentDelta | ToolCallDelta


class Taking(enum.Enum):
    """What becomes of text that is taken: it may be content, it is JSON of the arguments, or nothing."""

    HELD, ARGUMENTS, NOTHING = range(3)


class CallParser(ArgumentsReader):
    """Splits one message into content and calls; what is not a call of one of the tools is content.

    It takes special tokens as text. White space around calls belongs to neither. `has_whole_call`: the arguments of at
    least one call are complete. Ids depend on `request_id` and `choice`, the sample's index, alone: they are the same if
    another coordinator resumes the request.
    """

    def __init__(self, tools: Tools, call_format: CallFormat, request_id: str, choice: int = 0) -> None:
        super().__init__()
        self.has_whole_call = False
        self._schemas = {each["name"]: parameters_of(each) for each in tools.functions}
        self._format = call_format
        self._envelope = call_format.envelope
        self._begin = call_format.begin
        self._id_prefix = f"{request_id}/{choice}"
        self._plain = re.compile(f"[^{re.escape(self._begin[:1] + FENCE[0])}]+")
        self._num_calls = 0
        self._ids = set[str]()
        self._follows_call = False
        # Text taken that may turn out to be part of a call.
        self._held: list[str] = []
        # White space that belongs to the content if content follows.
        self._space: list[str] = []
        self._taking = Taking.HELD
        # The text was cut within a word of the format.
        self._ends_in_frame = False
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
        if self._taking is Taking.ARGUMENTS:
            self.emit(text)
        elif self._taking is Taking.HELD:
            self._held.append(text)

    def emit(self, json_text: str) -> None:
        if json_text:
            self._deltas.append(ToolCallDelta(self._num_calls - 1, arguments=json_text))

    def pass_value(self) -> Reading[bool]:
        self._taking = Taking.ARGUMENTS
        is_whole = yield from self.take_value()
        self._taking = Taking.NOTHING
        return is_whole

    def _advance(self, piece: str, is_whole: bool) -> list[Delta]:
        self.grow(piece, is_whole)
        next(self._reading, None)
        deltas, self._deltas = self._deltas, []
        return list(merged(deltas))

    def _message(self) -> Reading[None]:
        yield from self._beginning()
        self._release()
        while (yield from self.peek()):
            if (yield from self.take_next(self._begin)):
                yield from self._calls(self._begin)
                if self._is_cut:
                    self._drop_frame()
            elif self._format.is_loose and self._num_calls == 0 and (yield from self.take_next(FENCE)):
                yield from self._fenced_calls()
            elif self._is_cut and self._begin.startswith(self._text[self._at :]):
                self._at = len(self._text)
                self._space.clear()
            else:
                yield from self._take_some()
            self._release()
        if not self._follows_call and (space := "".join(self._space)):
            self._deltas.append(ContentDelta(space))

    def _beginning(self) -> Reading[None]:
        """Reads calls without a mark where the message begins."""
        yield from self.take_run(SPACE)
        character = yield from self.peek()
        if self._format.is_bare and character and self._format.opening.startswith(character):
            yield from self._calls("")
            if self._is_cut and self._follows_call:
                self._drop_frame()
        elif self._format.is_loose and character in ("{", "["):
            calls = yield from self._loose_calls()
            if not (yield from self.peek()):
                self._emit(calls)

    def _calls(self, mark: str) -> Reading[None]:
        """Reads the calls after a begin mark, which may be none."""
        envelope, separator = self._envelope, self._format.separator.strip()
        head = self._format.head if envelope is None else envelope.before
        opening = (self._format.calls_begin.removeprefix(self._format.optional_begin) + head).removeprefix(mark)
        while True:
            call = self._named_call(opening) if envelope is None else self._wrapped_call(opening, envelope)
            if not (yield from call):
                return
            self._held.clear()
            yield from self.take_run(SPACE)
            if self._format.marks_each:
                # The next one is found by its mark.
                return
            if not (yield from self._continues(head, separator)):
                break
            opening = head
        yield from self._take_words(self._format.calls_end)
        yield from self.take_run(SPACE)
        self._held.clear()

    def _continues(self, head: str, separator: str) -> Reading[bool]:
        """Takes what is between two calls, if another one follows."""
        if separator:
            is_next = yield from self._expect(separator)
            yield from self.take_run(SPACE)
            return is_next
        if first := SLOTS.split(head)[0].split() or ["{"] * (self._envelope is not None):
            return bool((yield from self.sees(first[0])))
        last = self._format.calls_end.split()[:1]
        if (yield from self.sees(*last)) or not (yield from self.peek()):
            return False
        self._ends_in_frame |= self.ends_in(*last)
        return not self._ends_in_frame

    def _drop_frame(self) -> None:
        """Drops an incomplete call, or an incomplete mark in or after one, at the end of the text."""
        if self._ends_in_frame or self.ends_in(self._begin, *self._format.head.split()[:1]):
            self._at = len(self._text)
            self._held.clear()

    def _expect(self, word: str) -> Reading[bool]:
        """Takes a word of the format, if it comes next."""
        if (yield from self.take_next(word)):
            return True
        self._ends_in_frame |= self._is_cut and word.startswith(self._text[self._at :])
        return False

    def _take_words(self, text: str) -> Reading[bool]:
        """Takes a text of the format, whatever white space is between its words; returns whether all of it has come."""
        for word in text.split():
            yield from self.take_run(SPACE)
            if not (yield from self._expect(word)):
                return False
        return True

    def _take_filled(self, text: str) -> Reading[str | None]:
        """Takes a text of the format with its slots. Returns the id in it, or ""; None if something else has come."""
        call_id = ""
        for part in SLOTS.split(text):
            if part in (ID, INDEX):
                written = yield from self.take_run(_SLOT)
                if not written:
                    return None
                call_id = written if part == ID else call_id
            elif not (yield from self._take_words(part)):
                return None
        yield from self.take_run(SPACE)
        return call_id

    def _named_call(self, opening: str) -> Reading[bool]:
        """Reads a call's texts, its name and its arguments."""
        call_id = yield from self._take_filled(opening)
        if call_id is None:
            return False
        name = yield from self.take_run(_NAME)
        if name not in self._schemas:
            return False
        if self.ends_in():
            # Maybe within the name.
            return False
        written = yield from self._take_middle()
        if written is None or not (yield from self._stream_call(name, call_id or written)):
            return False
        yield from self._take_filled(self._format.tail)
        return True

    def _take_middle(self) -> Reading[str | None]:
        """Takes what is between name and arguments; white space at its end may belong to an argument."""
        found = yield from self._take_filled(self._format.middle)
        if found is not None and isinstance(self._format.arguments, JsonArguments) and (yield from self.peek()) != "{":
            return None
        return found

    def _wrapped_call(self, opening: str, envelope: Envelope) -> Reading[bool]:
        call_id = yield from self._take_filled(opening)
        if call_id is None or not (yield from self._object(None, call_id)):
            return False
        yield from self._take_words(envelope.after)
        return True

    def _object(self, calls: list[tuple[str, str]] | None, call_id: str = "") -> Reading[bool]:
        """Reads a call as an object, whose members have any order; returns whether it is one.

        Adds it to `calls`, or emits it as soon as its name is known.
        """
        name = arguments = None
        name_key, arguments_key = (
            _KEYS if self._envelope is None else (self._envelope.name_key, self._envelope.arguments_key)
        )
        mark = "{"
        while (yield from self.take_next(mark)):
            key = yield from self._key()
            if key == name_key and name is None:
                name = yield from self.take_string()
                if name is None or name not in self._schemas:
                    return False
                if calls is None and arguments is not None:
                    self._emit([(name, arguments)])
            elif key == arguments_key and arguments is None:
                if (yield from self.peek()) != "{":
                    return False
                if calls is None and name is not None:
                    arguments = "{}"
                    is_whole = yield from self._stream_call(name, call_id)
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

    def _stream_call(self, name: str, call_id: str = "") -> Reading[bool]:
        self._open(name, call_id)
        self._taking = Taking.NOTHING
        is_whole = yield from self._format.arguments.read(self, self._schemas[name], self._format.tail)
        self._taking = Taking.HELD
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
        while (yield from self.peek()) and not (yield from self.sees(FENCE, self._begin)):
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

    def _open(self, name: str, call_id: str = "") -> None:
        """`call_id`: as the model wrote it, which is kept so that the next prompt has it too."""
        if not call_id or call_id in self._ids:
            call_id = f"call_{hashlib.sha256(f'{self._id_prefix}/{self._num_calls}'.encode()).hexdigest()[:24]}"
        self._ids.add(call_id)
        self._deltas.append(ToolCallDelta(self._num_calls, call_id, name))
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
