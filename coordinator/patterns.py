"""Reads regular expressions of ECMA-262, as JSON Schema has them, and writes them for the grammar library.

The library knows no look-around, back references or word boundaries, and anchors only at the ends of an expression. It
takes `[`, `&&` and `--` in a class for operators, where ECMA-262 means the characters.
"""

import re
from bisect import bisect
from collections.abc import Iterable
from dataclasses import dataclass, replace

# Groups within groups, and characters of an expression with each repetition written out.
MAX_DEPTH, MAX_WEIGHT = 64, 1 << 12
# Neighbors that may each be left out: the library's automaton grows with their square.
MAX_OPTIONAL = 32
# Characters of the texts of an expression that matches so few that they are listed.
MAX_LISTED = 1 << 9
_UNABLE = {"b": "a word boundary", "B": "a word boundary", "k": "a back reference"}
_CONTROL = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "v": "\v"}
_NOTHING = frozenset({""})
_TOO_MUCH = f"more than {MAX_WEIGHT} characters with its repetitions"
_QUANTIFIER = re.compile(r"[*+?]|\{(\d{1,9})(,(\d{1,9})?)?\}")
_HEX = re.compile(r"x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|u\{([0-9A-Fa-f]{1,6})\}")
_SURROGATES = re.compile(r"\\u(d[89ab][0-9a-f]{2})\\u(d[c-f][0-9a-f]{2})", re.IGNORECASE)
_SET = re.compile(r"[dDwWsS]|[pP]\{[A-Za-z0-9_=]{1,64}\}")
_GROUP = re.compile(r"\(\?(?:P?<[A-Za-z_]\w{0,63}>|([is]{0,2})(?:-([is]{1,2}))?([:)]))")


class UnsupportedPattern(Exception):
    """What the library can't do, in words."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """An expression, or a part of one.

    text: as the library reads it. texts: all that it matches; None: too many. Of a whole expression without both anchors,
    that is never a list. weight: see MAX_WEIGHT. starts: every match begins with one of them.
    """

    text: str
    texts: frozenset[str] | None
    weight: int = 1
    # An anchor is somewhere in it; every alternative has one.
    has_begin: bool = False
    has_end: bool = False
    is_begun: bool = False
    is_ended: bool = False
    # It matches the empty text, any one character, any text.
    is_optional: bool = False
    is_any_character: bool = False
    matches_all: bool = False
    starts: frozenset[str] = frozenset({""})

    @property
    def is_anchor(self) -> bool:
        return (self.has_begin or self.has_end) and self.texts == _NOTHING


_EMPTY = Pattern("", _NOTHING, 0, is_optional=True)
_BEGIN = Pattern("^", _NOTHING, 0, has_begin=True, is_begun=True, is_optional=True)
_END = Pattern("$", _NOTHING, 0, has_end=True, is_ended=True, is_optional=True)


class Starts:
    """Tells whether patterns match different keys, by how those begin."""

    def __init__(self) -> None:
        # In order. None begins as another does.
        self._known = list[str]()

    def add(self, starts: frozenset[str]) -> bool:
        """Returns whether nothing that begins so begins as what was added before; adds it then."""
        shortest = list[str]()
        for each in sorted(starts):
            if not shortest or not each.startswith(shortest[-1]):
                shortest.append(each)
        if any(map(self._meets, shortest)):
            return False
        self._known = sorted(self._known + shortest)
        return True

    def _meets(self, start: str) -> bool:
        at = bisect(self._known, start)
        return any(each.startswith(start) or start.startswith(each) for each in self._known[max(0, at - 1) : at + 1])


def read_pattern(text: str) -> Pattern:
    """Raises UnsupportedPattern."""
    # One character in two escapes.
    text = _SURROGATES.sub(lambda found: f"\\u{{{_join(int(found[1], 16), int(found[2], 16)):x}}}", text)
    reader = _Reader(text)
    read = reader.alternatives(0)
    if reader.at < len(text):
        raise UnsupportedPattern("a closing parenthesis without its opening one")
    if (read.is_begun and read.is_ended) or read.texts == frozenset():
        return read
    is_everything = read.is_optional and not (read.has_begin and read.has_end)
    starts = read.starts if read.is_begun else _NOTHING
    return Pattern(read.text, None, read.weight, matches_all=is_everything, starts=starts)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self.at = 0
        self._ignores_case = False

    def alternatives(self, depth: int) -> Pattern:
        if depth > MAX_DEPTH:
            raise UnsupportedPattern(f"more than {MAX_DEPTH} groups within each other")
        parts = [self._sequence(depth, 0)]
        weight = parts[0].weight
        while self._take("|"):
            parts.append(self._sequence(depth, weight))
            weight += parts[-1].weight
        return parts[0] if len(parts) == 1 else _either(parts)

    def _sequence(self, depth: int, weight: int) -> Pattern:
        """`weight`: of the alternatives before."""
        parts = list[Pattern]()
        while self.at < len(self._text) and self._text[self.at] not in "|)":
            part = self._atom(depth)
            if quantifier := _QUANTIFIER.match(self._text, self.at):
                self.at = quantifier.end()
                part = _repeated(part, *_bounds(quantifier))
                # A lazy one matches the same texts.
                self._take("?")
                if _QUANTIFIER.match(self._text, self.at):
                    raise UnsupportedPattern("a quantifier of a quantifier")
            parts.append(part)
            weight += part.weight
            if weight > MAX_WEIGHT:
                raise UnsupportedPattern(_TOO_MUCH)
        return _in_sequence(parts)

    def _atom(self, depth: int) -> Pattern:
        character = self._next()
        match character:
            case "^":
                return _BEGIN
            case "$":
                return _END
            case ".":
                return Pattern(".", None)
            case "(":
                return self._group(depth)
            case "[":
                return self._class()
            case "*" | "+" | "?":
                raise UnsupportedPattern("a quantifier of nothing")
            case "\\":
                return self._escape()
        if character == "{" and _QUANTIFIER.match(self._text, self.at - 1):
            raise UnsupportedPattern("a quantifier of nothing")
        return self._literal(character)

    def _group(self, depth: int) -> Pattern:
        start = self.at - 1
        opening, before = "(?:", self._ignores_case
        if self._text.startswith("(?", start):
            found = _GROUP.match(self._text, start)
            if found is None:
                is_around = self._text[start + 2 : start + 4].startswith(("=", "!", "<=", "<!"))
                raise UnsupportedPattern("look-around" if is_around else "a group of an unknown kind")
            self.at = found.end()
            if found[3]:
                opening = found[0] if found[1] or found[2] else "(?:"
                self._ignores_case = (before or "i" in found[1]) and "i" not in (found[2] or "")
            if found[3] == ")":
                # Up to the end of the group that it is in.
                rest = self.alternatives(depth + 1)
                return replace(rest, text=f"{opening[:-1]}:{rest.text})")
        inner = self.alternatives(depth + 1)
        self._ignores_case = before
        if not self._take(")"):
            raise UnsupportedPattern("a group without an end")
        return replace(inner, text=f"{opening}{inner.text})")

    def _escape(self) -> Pattern:
        if escape := self._set():
            return _listed(escape, frozenset("0123456789")) if escape == "\\d" else Pattern(escape, None)
        escaped = self._next()
        # Python's and Rust's.
        if escaped in "AzZ":
            return _BEGIN if escaped == "A" else _END
        return self._literal(self._character(escaped))

    def _character(self, escaped: str) -> str:
        """Returns the character that an escape stands for; `escaped`: what follows the backslash."""
        following = self._text[self.at : self.at + 1]
        if escaped in _CONTROL:
            return _CONTROL[escaped]
        if escaped == "0" and not following.isdigit():
            return "\0"
        if escaped == "c" and following.isascii() and following.isalpha():
            self.at += 1
            return chr(ord(following) % 32)
        if found := _HEX.match(self._text, self.at - 1):
            self.at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                raise UnsupportedPattern("half of a surrogate pair")
            return chr(code)
        if escaped.isascii() and escaped.isalnum():
            raise UnsupportedPattern("a back reference" if escaped.isdigit() else _UNABLE.get(escaped, f"\\{escaped}"))
        return escaped

    def _class(self) -> Pattern:
        is_negated = self._take("^")
        # Empty to ECMA-262; the character to others.
        if self._text.startswith("]", self.at):
            raise UnsupportedPattern("a class that begins with ]")
        written, sets, members = list[str](), set[str](), set[str]()
        while not self._take("]"):
            low, is_set = self._member()
            if is_set:
                written.append(low)
                sets.add(low)
                continue
            high = self._end_of_range(low)
            written.append(_written(low) if low == high else f"{_written(low)}-{_written(high)}")
            if len(members) <= MAX_LISTED:
                members.update(map(chr, range(ord(low), min(ord(high), ord(low) + MAX_LISTED) + 1)))
        is_any = any(f"\\{each}" in sets and f"\\{each.upper()}" in sets for each in "dsw")
        is_listed = not is_negated and not sets and len(members) <= MAX_LISTED
        text = f"[{'^' if is_negated else ''}{''.join(written)}]"
        if is_any and is_negated:
            return _listed(text, frozenset())
        if is_listed:
            return _listed(text, self._cased(members))
        return Pattern(text, None, is_any_character=is_any)

    def _end_of_range(self, low: str) -> str:
        if self._text[self.at : self.at + 1] != "-" or self._text[self.at + 1 : self.at + 2] in ("]", ""):
            return low
        hyphen, self.at = self.at, self.at + 1
        high, is_set = self._member()
        # A hyphen beside a set is a character.
        if is_set:
            self.at = hyphen
            return low
        if high < low:
            raise UnsupportedPattern("a range of characters whose end comes first")
        return high

    def _member(self) -> tuple[str, bool]:
        """Returns a character of a class, or the escape of a set, and whether it is a set."""
        character = self._next()
        if character == "[" and self._text[self.at : self.at + 1] in (":", ".", "="):
            raise UnsupportedPattern("a named class")
        if character != "\\":
            return character, False
        if escape := self._set():
            return escape, True
        escaped = self._next()
        return "\b" if escaped == "b" else self._character(escaped), False

    def _set(self) -> str:
        """Returns what follows a backslash, with it, if it stands for a set of characters."""
        found = _SET.match(self._text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return f"\\{found[0]}"

    def _literal(self, character: str) -> Pattern:
        return _listed(_written(character), self._cased({character}))

    def _cased(self, characters: set[str]) -> frozenset[str]:
        if not self._ignores_case:
            return frozenset(characters)
        return frozenset(each for text in characters for each in (text, text.lower(), text.upper()))

    def _take(self, character: str) -> bool:
        is_next = self._text.startswith(character, self.at)
        self.at += is_next
        return is_next

    def _next(self) -> str:
        if self.at == len(self._text):
            raise UnsupportedPattern("no end")
        self.at += 1
        return self._text[self.at - 1]


def _in_sequence(parts: list[Pattern]) -> Pattern:
    texts: frozenset[str] | None = _NOTHING
    starts, is_known = _NOTHING, True
    solid = [at for at, each in enumerate(parts) if not each.is_anchor]
    for at, part in enumerate(parts):
        if solid and ((part.has_begin and at > solid[0]) or (part.has_end and at < solid[-1])):
            raise UnsupportedPattern("an anchor in the middle")
        texts = _joined(texts, part.texts)
        if is_known:
            starts = _joined(starts, part.starts if part.texts is None else part.texts) or starts
        is_known = texts is not None
    if sum(parts[at].is_optional for at in solid) > MAX_OPTIONAL:
        raise UnsupportedPattern(f"more than {MAX_OPTIONAL} neighbors that may each be left out")
    return Pattern(
        "".join(each.text for each in parts), texts, sum(each.weight for each in parts),
        has_begin=any(each.has_begin for each in parts), has_end=any(each.has_end for each in parts),
        is_begun=any(each.is_begun for each in parts), is_ended=any(each.is_ended for each in parts),
        is_optional=all(each.is_optional for each in parts),
        is_any_character=len(parts) == 1 and parts[0].is_any_character,
        matches_all=len(solid) == 1 and parts[solid[0]].matches_all, starts=starts,
    )  # fmt: skip


def _either(parts: list[Pattern]) -> Pattern:
    return Pattern(
        "|".join(each.text for each in parts), _union([each.texts for each in parts]), sum(each.weight for each in parts),
        has_begin=any(each.has_begin for each in parts), has_end=any(each.has_end for each in parts),
        is_begun=all(each.is_begun for each in parts), is_ended=all(each.is_ended for each in parts),
        is_optional=any(each.is_optional for each in parts),
        matches_all=any(each.matches_all for each in parts),
        starts=_union([each.starts for each in parts]) or _NOTHING,
    )  # fmt: skip


def _repeated(part: Pattern, low: int, high: int | None) -> Pattern:
    if part.has_begin or part.has_end:
        raise UnsupportedPattern("an anchor that is repeated")
    # The library counts the repetitions of one character.
    is_counted = part.weight == 1 and low != high
    weight = 2 if is_counted else part.weight * max(low + 1 if high is None else high, 1)
    if weight > MAX_WEIGHT:
        raise UnsupportedPattern(_TOO_MUCH)
    if high is not None and high < low:
        raise UnsupportedPattern("a quantifier whose end comes first")
    text = f"(?:{part.text}){{{low},{'' if high is None else high}}}"
    is_all = part.is_any_character and low == 0 and high is None
    texts = part.texts if part.texts in (_NOTHING, frozenset()) else _powers(part.texts, low, high)
    starts = part.starts if low else _NOTHING
    return Pattern(text, texts, weight, is_optional=low == 0 or part.is_optional, matches_all=is_all, starts=starts)


def _listed(text: str, texts: frozenset[str]) -> Pattern:
    return Pattern(text, texts, starts=texts)


def _powers(texts: frozenset[str] | None, low: int, high: int | None) -> frozenset[str] | None:
    """`texts`: not only the empty one."""
    if high == 0:
        return _NOTHING
    # Of each number of repetitions there is another text, and the longest has a character or more for each of them.
    if high is None or high > MAX_LISTED or texts is None:
        return None
    power: frozenset[str] | None = _NOTHING
    found: frozenset[str] | None = _NOTHING if low == 0 else frozenset()
    for number in range(1, high + 1):
        power = _joined(power, texts)
        if number >= low:
            found = _union([found, power])
        if power is None or found is None:
            return None
    return found


def _joined(first: frozenset[str] | None, second: frozenset[str] | None) -> frozenset[str] | None:
    if first is None or second is None:
        return None
    if _NOTHING in (first, second):
        return second if first == _NOTHING else first
    if len(second) * sum(map(len, first)) + len(first) * sum(map(len, second)) > MAX_LISTED:
        return None
    return frozenset(one + other for one in first for other in second)


def _union(each: Iterable[frozenset[str] | None]) -> frozenset[str] | None:
    found, size = set[str](), 0
    for texts in each:
        if texts is None:
            return None
        size += sum(len(text) for text in texts if text not in found)
        if size > MAX_LISTED:
            return None
        found |= texts
    return frozenset(found)


def _bounds(quantifier: re.Match[str]) -> tuple[int, int | None]:
    sign = quantifier[0]
    if sign in ("*", "+", "?"):
        return int(sign == "+"), 1 if sign == "?" else None
    low = int(quantifier[1])
    return low, low if quantifier[2] is None else int(quantifier[3]) if quantifier[3] else None


def _written(character: str) -> str:
    """Writes a character so that it stands for itself."""
    return character if character.isalnum() else f"\\x{{{ord(character):x}}}"


def _join(high: int, low: int) -> int:
    """Returns the code of a character that UTF-16 writes in two."""
    return 0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)
