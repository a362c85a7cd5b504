"""Reads text piece by piece by coroutines that wait for more where they need it."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from functools import cache
from typing import TypeVar

from coordinator.json_text import WHITESPACE

T = TypeVar("T")
# A reading that stops wherever the text so far ends. It sees characters, never pieces: any split gives the same.
Reading = Generator[None, None, T]

SPACE = re.compile(f"[{WHITESPACE}]+")
_IN_STRING = re.compile(r'[^"\\]+')
# Numbers, true, false, null and what is between values: the scanner knows nesting, not grammar.
_BETWEEN = re.compile(f"[-+.:,0-9A-Za-z{WHITESPACE}]+")
_WORD = re.compile(r"[-+.0-9A-Za-z]+")
_CLOSING = {"{": "}", "[": "]"}


@cache
def run_without(characters: str) -> re.Pattern[str]:
    """Returns a run of other characters."""
    return re.compile(f"[^{re.escape(characters)}]+")


class JsonScanner(ABC):
    """A cursor in a text that grows. What it takes goes to `take`."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._is_whole = False
        # The text ends where it was cut, maybe within a mark.
        self._is_cut = False

    def grow(self, piece: str, is_whole: bool = False) -> None:
        self._text = self._text[self._at :] + piece
        self._at = 0
        self._is_whole = is_whole

    @abstractmethod
    def take(self, text: str) -> None:
        """Gets the text taken, in order."""

    def peek(self) -> Reading[str]:
        """Returns the next character; "" at the end."""
        while self._at == len(self._text) and not self._is_whole:
            yield
        return self._text[self._at : self._at + 1]

    def sees(self, *texts: str) -> Reading[str]:
        """Returns the first of `texts` that comes next, or ""."""
        while not self._is_whole and any(
            len(self._text) - self._at < len(text) and text.startswith(self._text[self._at :]) for text in texts
        ):
            yield
        return next((text for text in texts if text and self._text.startswith(text, self._at)), "")

    def take_next(self, text: str) -> Reading[bool]:
        """Takes `text`, if it comes next."""
        if not (yield from self.sees(text)):
            return False
        self._take_to(self._at + len(text))
        return True

    def take_run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Takes the longest run of a class of characters."""
        taken = []
        while (yield from self.peek()) and (run := self.take_at_hand(pattern)):
            taken.append(run)
        return "".join(taken)

    def take_at_hand(self, pattern: re.Pattern[str]) -> str:
        """Takes what is here of such a run."""
        run = pattern.match(self._text, self._at)
        if run is None:
            return ""
        self._take_to(run.end())
        return run[0]

    def take_string(self) -> Reading[str | None]:
        """Takes a JSON string and returns what it says; None if it is none."""
        if not (yield from self.take_next('"')):
            return None
        written = ['"']
        while True:
            written.append((yield from self.take_run(_IN_STRING)))
            # A backslash, with what it escapes, or the closing quote.
            mark = yield from self.take_character()
            written.append(mark)
            if mark == "\\":
                written.append((yield from self.take_character()))
            elif mark == '"':
                break
            else:
                return None
        try:
            return str(json.loads("".join(written), strict=False))
        except ValueError:
            return None

    def take_until(self, marks: tuple[str, ...], num_taken: int, on_text: Callable[[str], None]) -> Reading[bool]:
        """Takes a text up to the first of `marks`, and `num_taken` characters of that; returns whether one has come.

        `on_text`: gets the text as it comes.
        """
        while True:
            found = [at for mark in marks if (at := self._text.find(mark, self._at)) >= 0]
            is_over = self._is_whole and not self._is_cut
            end = min(found, default=len(self._text) if is_over else self._safe_end(marks))
            if text := self._text[self._at : end]:
                self._take_to(end)
                on_text(text)
            if found:
                self._take_to(end + num_taken)
                return True
            if self._is_whole:
                self._take_to(len(self._text))
                return False
            yield

    def ends_in(self, *words: str) -> bool:
        """Returns whether the text was cut within one of these words, or before it, and takes what is there of that."""
        rest = self._text[self._at :]
        if not (self._is_whole and self._is_cut) or (rest and not any(word.startswith(rest) for word in words)):
            return False
        self._take_to(len(self._text))
        return True

    def _safe_end(self, marks: tuple[str, ...]) -> int:
        """Returns where a mark may begin that has not come as a whole."""
        end = len(self._text)
        for start in range(max(self._at, end - max(map(len, marks)) + 1), end):
            if any(mark.startswith(self._text[start:]) for mark in marks):
                return start
        return end

    def take_escaped(self, quote: str, on_text: Callable[[str], None]) -> Reading[bool]:
        """Takes the rest of a string with its closing quote; returns whether that has come. `on_text`: gets it without."""
        plain = run_without(quote + "\\")
        while (character := (yield from self.peek())) not in (quote, ""):
            if character == "\\":
                yield from self.take_character()
                escaped = yield from self.take_character()
                on_text(character + escaped if escaped else "")
            else:
                on_text(self.take_at_hand(plain))
        return (yield from self.take_next(quote))

    def take_value(self) -> Reading[bool]:
        """Takes an object, a list, a string or one word; returns whether it has an end."""
        character = yield from self.peek()
        if character == '"':
            return (yield from self.take_string()) is not None
        if character in _CLOSING:
            return (yield from self._take_nested())
        return bool((yield from self.take_run(_WORD)))

    def _take_nested(self) -> Reading[bool]:
        closing: list[str] = []
        while True:
            character = yield from self.peek()
            if character == '"':
                if (yield from self.take_string()) is None:
                    return False
            elif character in _CLOSING:
                closing.append(_CLOSING[character])
                self._take_to(self._at + 1)
            elif closing and character == closing[-1]:
                closing.pop()
                self._take_to(self._at + 1)
                if not closing:
                    return True
            elif not (yield from self.take_run(_BETWEEN)):
                return False

    def take_character(self) -> Reading[str]:
        character = yield from self.peek()
        self._take_to(self._at + len(character))
        return character

    def _take_to(self, end: int) -> None:
        start, self._at = self._at, end
        if end > start:
            self.take(self._text[start:end])
