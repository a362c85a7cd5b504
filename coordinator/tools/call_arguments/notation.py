"""Spellings of values inside a call: JSON's, Python's, and a model's own."""

import ast
import contextlib
import json
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from coordinator.json_text import FIXED_WHITESPACE
from coordinator.tools.call_arguments.lark_rules import LarkRules, Member, pattern
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_arguments.schema_types import Schema, as_json, properties_of, resolve, types_of
from coordinator.tools.json_scanner import SPACE, Reading, run_without

_INTEGER, _NUMBER = r"-?(0|[1-9][0-9]*)", r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?"
_WORD = run_without(" \t\r\n,[]{}()")
_QUOTES = ("'", '"')
_KEY = r"[A-Za-z0-9_.$-]+"
_LEVELS = re.compile(r'\{\n( +)"[^"]*": \{\n( +)"')
_ALL_TYPES = ("string", "number", "boolean", "null", "array", "object")
# Schemas in schemas, from where on any value is allowed.
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Notation:
    """quote: around strings. escapes: how strings are escaped: "json", "python", or "none", where they stand as they are.

    words: for true, false and null. indent: spaces of each level of JSON in lines of its own, beside those of its margin.
    """

    quote: str = '"'
    escapes: str = "json"
    words: tuple[str, str, str] = ("true", "false", "null")
    item_separator: str = ", "
    key_separator: str = ": "
    quotes_keys: bool = True
    sorts_keys: bool = False
    is_ascii: bool = False
    indent: int = 0
    margin: int = 0

    @property
    def is_json(self) -> bool:
        return (self.quote, self.escapes, self.words, self.quotes_keys) == (
            '"',
            "json",
            ("true", "false", "null"),
            True,
        )

    @property
    def white_space(self) -> dict[str, Any]:
        """Returns the grammar library's options for JSON in one line."""
        separators = {"item_separator": self.item_separator, "key_separator": self.key_separator}
        return FIXED_WHITESPACE | separators

    def write(self, value: Any) -> str:
        if self.indent:
            # Line breaks in strings are escaped.
            written = json.dumps(value, ensure_ascii=self.is_ascii, indent=self.indent)
            return written.replace("\n", "\n" + " " * self.margin)
        match value:
            case None | bool():
                return self.words[2 if value is None else 0 if value else 1]
            case str():
                return self._string(value)
            case list():
                return f"[{self.item_separator.join(map(self.write, value))}]"
            case dict():
                members = (
                    f"{self._key(key)}{self.key_separator}{self.write(each)}" for key, each in self.ordered(value)
                )
                return f"{{{self.item_separator.join(members)}}}"
        return json.dumps(value)

    def ordered(self, members: dict[str, Any]) -> list[tuple[str, Any]]:
        """Returns members in the order in which they are written."""
        # As jinja's dictsort, which ignores case.
        return sorted(members.items(), key=lambda each: each[0].lower()) if self.sorts_keys else list(members.items())

    def _string(self, text: str) -> str:
        if self.escapes == "json":
            return json.dumps(text, ensure_ascii=self.is_ascii)
        return repr(text) if self.escapes == "python" else f"{self.quote}{text}{self.quote}"

    def _key(self, key: str) -> str:
        return self._string(key) if self.quotes_keys else key

    # Reading: JSON leaves by `reader.emit`, as far as it is decided.

    def read(self, reader: ArgumentsReader, ends: tuple[str, ...] = (), depth: int = 0) -> Reading[bool]:
        """Reads a value and returns whether it is whole. `ends`: what follows it, where no escapes tell a string's end."""
        yield from reader.take_run(SPACE)
        if self.escapes != "python" and (yield from reader.take_next(self.quote)):
            return (yield from self._read_string(reader, ends))
        if (yield from reader.peek()) in _QUOTES:
            written, is_whole = yield from _take_escaped(reader)
            reader.emit(written if is_whole else "")
            return is_whole
        if depth < _MAX_DEPTH * 4 and (yield from reader.take_next("[")):
            return (yield from self._read_items(reader, "]", depth))
        if depth < _MAX_DEPTH * 4 and (yield from reader.take_next("{")):
            return (yield from self._read_items(reader, "}", depth))
        word = yield from reader.take_run(_WORD)
        if not word or reader.ends_in():
            return False
        reader.emit(self._word(word))
        return True

    def _word(self, word: str) -> str:
        known = dict(zip(self.words, JSON.words, strict=True))
        return known[word] if word in known else as_json(word, frozenset())

    def _read_string(self, reader: ArgumentsReader, ends: tuple[str, ...]) -> Reading[bool]:
        reader.emit('"')
        if self.escapes == "json":
            is_whole = yield from reader.take_escaped(self.quote, reader.emit)
        else:
            # The text may contain a quote of one character.
            marks = tuple(self.quote + end for end in ends) if len(self.quote) == 1 and ends else (self.quote,)
            is_whole = yield from reader.take_until(marks, len(self.quote), reader.emit_text)
        reader.emit('"' if is_whole else "")
        return is_whole

    def _read_items(self, reader: ArgumentsReader, closing: str, depth: int) -> Reading[bool]:
        """Reads a list's items or an object's members, after the opening bracket."""
        reader.emit("[" if closing == "]" else "{")
        separator, ends = "", (self.item_separator.strip(), closing)
        while True:
            yield from reader.take_run(SPACE)
            if (yield from reader.take_next(closing)):
                reader.emit(closing)
                return True
            reader.emit(separator)
            if closing == "}" and not (yield from self._read_key(reader)):
                return False
            if not (yield from self.read(reader, ends, depth + 1)):
                return False
            yield from reader.take_run(SPACE)
            separator = ", "
            if not (yield from reader.take_next(",")) and not (yield from reader.sees(closing)):
                return False

    def _read_key(self, reader: ArgumentsReader) -> Reading[bool]:
        colon = self.key_separator.strip()
        if (yield from reader.peek()) in _QUOTES:
            key, _ = yield from _take_escaped(reader)
        elif (yield from reader.take_next(self.quote)):
            parts: list[str] = []
            yield from reader.take_until((self.quote,), len(self.quote), parts.append)
            key = json.dumps("".join(parts), ensure_ascii=False)
        else:
            key = json.dumps((yield from reader.take_run(run_without(colon + "\n{}[],"))).strip(), ensure_ascii=False)
        yield from reader.take_run(SPACE)
        if not (yield from reader.take_next(colon)):
            return False
        reader.emit(f"{key}: ")
        return True

    # The grammar.

    def grammar(self, schema: Any, root: Schema, rules: LarkRules, depth: int = 0) -> str:
        """Returns an expression for a value of a schema."""
        schema = resolve(schema, root)
        if self.is_json:
            known = {key: root[key] for key in ("$defs", "definitions", "$schema", "x-guidance") if key in root}
            return rules.json(known | schema, self.white_space)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            return rules.rule(" | ".join(rules.literal(self.write(each)) for each in values))
        for key in ("anyOf", "oneOf"):
            if isinstance(schema.get(key), list) and schema[key] and depth < _MAX_DEPTH:
                return rules.rule(" | ".join(self.grammar(each, root, rules, depth + 1) for each in schema[key]))
        types = types_of(schema, root) or frozenset(_ALL_TYPES)
        if depth >= _MAX_DEPTH:
            types = frozenset(_ALL_TYPES[:4])
        return rules.rule(
            " | ".join(each for kind in sorted(types) for each in self._of_type(kind, schema, root, rules, depth))
        )

    def _of_type(self, kind: str, schema: Schema, root: Schema, rules: LarkRules, depth: int) -> Iterator[str]:
        match kind:
            case "string":
                yield self._string_grammar(schema, rules)
            case "integer" | "number":
                yield rules.terminal(pattern(_INTEGER if kind == "integer" else _NUMBER))
            case "boolean":
                yield f"{rules.literal(self.words[0])} | {rules.literal(self.words[1])}"
            case "null":
                yield rules.literal(self.words[2])
            case "array":
                # A nesting without a schema ends sooner: each level has all types.
                deeper = depth + (1 if schema.get("items") else _MAX_DEPTH // 2)
                item = self.grammar(schema.get("items", {}), root, rules, deeper)
                yield f'"[" ({item} ({rules.literal(self.item_separator)} {item})*)? "]"'
            case "object":
                yield f'"{{" {self.members_grammar(schema, root, rules, depth)} "}}"'

    def members_grammar(self, schema: Schema, root: Schema, rules: LarkRules, depth: int = 0) -> str:
        properties, required = properties_of(schema, root), schema.get("required", [])
        members = [
            Member(rules.rule(f"{rules.literal(self._key(key) + self.key_separator)} {self.grammar(each, root, rules, depth + 1)}"), key in required)
            for key, each in self.ordered(properties)
        ]  # fmt: skip
        more = ""
        if not properties and schema.get("additionalProperties", True) is not False:
            key = f"{rules.literal(self.quote)} {rules.terminal(pattern(_KEY))} {rules.literal(self.quote)}"
            key = key if self.quotes_keys else rules.terminal(pattern(_KEY))
            inner = schema.get("additionalProperties")
            value = self.grammar(inner if isinstance(inner, dict) else {}, root, rules, depth + _MAX_DEPTH // 2)
            more = rules.rule(f"{key} {rules.literal(self.key_separator)} {value}")
        return rules.members(members, self.item_separator, more)

    def _string_grammar(self, schema: Schema, rules: LarkRules) -> str:
        if self.escapes == "none":
            return f"{rules.literal(self.quote)} {rules.text_until(self.quote, text_pattern(schema))}"
        if self.escapes == "json":
            constraints = {key: schema[key] for key in ("minLength", "maxLength", "pattern", "format") if key in schema}
            return rules.json({"type": "string"} | constraints)
        return rules.terminal(pattern(r"'([^'\\\n]|\\[\\'nrt])*'"))


JSON = Notation()
PYTHON = Notation("'", "python", ("True", "False", "None"))
# What templates write by `tojson`, with and without options, and by `string`.
NOTATIONS = (
    JSON,
    replace(JSON, item_separator=",", key_separator=":"),
    *(replace(JSON, is_ascii=True, item_separator=comma, key_separator=colon) for comma, colon in ((", ", ": "), (",", ":"))),
    replace(JSON, sorts_keys=True),
    replace(JSON, item_separator=",", key_separator=":", sorts_keys=True),
    PYTHON,
)  # fmt: skip


def find_notation(*written: tuple[Any, str]) -> Notation | None:
    """Returns the first notation that writes all these values so."""
    known = (*NOTATIONS, *_indented(written[0][1]))
    return next((each for each in known if all(each.write(value) == text for value, text in written)), None)


def _indented(text: str) -> Iterator[Notation]:
    """Yields the notations in which an object in an object may be written so."""
    if levels := _LEVELS.match(text):
        outer, inner = map(len, levels.groups())
        for is_ascii in (False, True):
            yield replace(JSON, is_ascii=is_ascii, indent=inner - outer, margin=2 * outer - inner)


def text_pattern(schema: Schema) -> str:
    """Returns a terminal for a text as long as a schema allows."""
    least, most = schema.get("minLength", 0), schema.get("maxLength", "")
    is_bounded = isinstance(least, int) and (most == "" or isinstance(most, int)) and (least or most != "")
    return pattern(f"(?s:.{{{least},{most}}})") if is_bounded else pattern("(?s:.*)")


def _take_escaped(reader: ArgumentsReader) -> Reading[tuple[str, bool]]:
    """Takes a string in either of Python's quotes, JSON's among them; returns it as JSON, and whether it is whole."""
    quote = yield from reader.take_character()
    parts: list[str] = []
    is_whole = yield from reader.take_escaped(quote, parts.append)
    text = "".join(parts)
    # Text that Python can't read is kept as it is.
    with contextlib.suppress(ValueError, SyntaxError), warnings.catch_warnings(action="ignore"):
        text = str(ast.literal_eval(quote + text.replace("\n", "\\n") + quote))
    return json.dumps(text, ensure_ascii=False), is_whole
