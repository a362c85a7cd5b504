"""Prepares llama.cpp's grammars (GBNF) for llguidance's converter.

It loses leading zeros of code points, and passes on escapes and classes that mean something else in Lark.
"""

import re

# A comment, a literal or a class; an open one reaches to the end of the text.
_PART = re.compile(
    r"#[^\r\n]*|(?P<quote>\")(?:[^\"\\]|\\.)*(?:\"|\\?\Z)|(?P<bracket>\[)(?:[^\]\\]|\\.)*(?:\]|\\?\Z)", re.DOTALL
)
_CHARACTER = re.compile(
    r"\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([nrt\\\"\[\]])|([^\\])", re.DOTALL
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}
# Characters that mean something in a class of Rust's expressions.
_IN_CLASS = frozenset("\\[]^-&~")


def plain_gbnf(text: str) -> str:
    """Writes literals and classes so that they mean the same in Lark. Raises ValueError for an unknown escape."""
    return _PART.sub(_plain, text)


def _plain(part: re.Match[str]) -> str:
    written, mark = part[0], part["quote"] or part["bracket"]
    # An open one is left to the converter, which refuses it.
    if not mark or len(written) == 1 or not written.endswith("]" if mark == "[" else '"'):
        return written
    inside, before = written[1:-1], mark
    if mark == "[" and inside.startswith("^"):
        inside, before = inside[1:], "[^"
    characters = _characters(inside)
    if mark == '"':
        return f'"{"".join(map(_in_literal, characters))}"'
    return f"{before}{_ranges(characters)}]"


def _ranges(characters: list[str]) -> str:
    """Writes a class, where a hyphen between two characters makes a range of them."""
    written, at = list[str](), 0
    while at < len(characters):
        is_range = characters[at + 1 : at + 2] == ["-"] and at + 2 < len(characters)
        written.append(
            "-".join(map(_in_class, (characters[at], characters[at + 2]) if is_range else (characters[at],)))
        )
        at += 3 if is_range else 1
    return "".join(written)


def _characters(text: str) -> list[str]:
    found, at = list[str](), 0
    while at < len(text):
        match = _CHARACTER.match(text, at)
        if match is None:
            raise ValueError(f"invalid escape sequence {text[at : at + 10]}")
        at = match.end()
        code = match[1] or match[2] or match[3]
        character = chr(int(code, 16)) if code else _ESCAPED.get(match[4], match[4] or match[5])
        if "\ud800" <= character <= "\udfff":
            raise ValueError(f"half of a surrogate pair in {match[0]}")
        found.append(character)
    return found


def _in_literal(character: str) -> str:
    return f"\\{character}" if character in '"\\' else _without_control(character)


def _in_class(character: str) -> str:
    return f"\\x{ord(character):02x}" if character in _IN_CLASS else _without_control(character)


def _without_control(character: str) -> str:
    return character if character.isprintable() or ord(character) > 0x7F else f"\\x{ord(character):02x}"
