"""Rules of a grammar in llguidance's variant of Lark, gathered one by one."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from coordinator.json_text import FIXED_WHITESPACE

ANY_TEXT = "/(?s:.*)/"


class Member(NamedTuple):
    """A parameter or a key with its value, as an expression."""

    written: str
    is_required: bool


class LarkRules:
    """`tokens`: name -> id of each token that must be written as a token, since no text matches it.

    In the library, text matches neither special tokens nor added tokens in angle brackets.
    """

    def __init__(self, tokens: Mapping[str, int]) -> None:
        self.lines: list[str] = []
        self._tokens = tokens
        names = sorted(tokens, key=len, reverse=True)
        self._names = re.compile("|".join(map(re.escape, names))) if names else None

    def literal(self, text: str) -> str:
        """Returns an expression for this text, whose special tokens are tokens; "" for none."""
        if not text or self._names is None:
            return quoted(text)
        parts, at = [], 0
        for found in self._names.finditer(text):
            parts += [quoted(text[at : found.start()]), f"<[{self._tokens[found[0]]}]>"]
            at = found.end()
        return " ".join(each for each in (*parts, quoted(text[at:])) if each)

    def first_token(self, text: str) -> str | None:
        """Returns the special token in a text that comes first."""
        found = self._names.search(text) if self._names is not None else None
        return None if found is None else found[0]

    def rule(self, expression: str, attributes: str = "") -> str:
        """Adds a rule and returns its name."""
        name = f"r{len(self.lines)}"
        self.lines.append(f"{name}{attributes}: {expression}")
        return name

    def terminal(self, expression: str) -> str:
        name = f"T{len(self.lines)}"
        self.lines.append(f"{name}: {expression}")
        return name

    def text_until(self, mark: str, text: str = ANY_TEXT) -> str:
        """Returns an expression for a text and the mark after it, at the first place where the mark comes."""
        if (token := self.first_token(mark)) is None:
            return self.rule(f"{self.terminal(text)} {quoted(mark)}", "[lazy]")
        return f"{self.terminal(text)} {self.literal(mark[mark.index(token) :])}"

    def json(self, schema: dict[str, Any], white_space: Mapping[str, Any] = FIXED_WHITESPACE) -> str:
        """Returns an expression for JSON of a schema, in the white space that the chat template writes.

        What the model generates comes back with the same tokens in the next prompt.
        """
        return f"%json {json.dumps(schema | {'x-guidance': {**schema.get('x-guidance', {}), **white_space}})}"

    def members(self, members: Sequence[Member], separator: str, more: str = "", may_be_none: bool = True) -> str:
        """Returns an expression for members in their order, of which some may be left out, or all if there `may_be_none`.

        `more`: an expression for any other member, of which any number may follow.
        """
        between = quoted(separator)
        some = f"({between} {more})*" if more else ""
        # From the last to the first: after another member, and where none has been written yet.
        after = self.rule(some or '""')
        first = f"({more} {some}){'?' if may_be_none else ''}" if more else '""' if may_be_none else ""
        first = self.rule(first) if first else ""
        for written, is_required in reversed(members):
            follows = f"{between} {written}" if between else written
            first = self.rule(f"{written} {after}" + (f" | {first}" if first and not is_required else ""))
            after = self.rule(f"{follows} {after}" if is_required else f"({follows})? {after}")
        return first


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def pattern(expression: str) -> str:
    """Returns a terminal's regular expression."""
    return "/" + expression.replace("/", "\\/") + "/"
