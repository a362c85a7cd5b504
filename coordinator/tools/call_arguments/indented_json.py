"""The grammar of JSON in lines of its own, as `json.dumps(value, indent=4)` writes it.

The grammar library can't count levels, so each level has rules of its own, with the white space that a chat template
writes: where white space is free, a model that would rather not call goes on writing it.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from coordinator.json_text import FIXED_WHITESPACE
from coordinator.tools.call_arguments.lark_rules import LarkRules, Member, quoted
from coordinator.tools.call_arguments.schema_types import Schema, resolve, types_of

_SCALARS = frozenset(("string", "number", "integer", "boolean", "null"))
# What a schema may say of an object or an array for its lines to be written here; the library writes any other.
_OF_OBJECTS = frozenset(("type", "properties", "required", "additionalProperties"))
_OF_ARRAYS = frozenset(("type", "items", "minItems", "maxItems"))
# Beside the arguments' own keywords.
_SHARED = ("$defs", "definitions", "$schema", "x-guidance")
# Levels with rules of their own, and those below a value whose lines the library writes.
_MAX_LEVELS, _LOOSE_LEVELS = 6, 16
_ANY: Schema = {}
# A reference that leads nowhere from a part of the schema.
_ELSEWHERE = re.compile(r'"\$ref": "(?!#/(\$defs|definitions)/)')


@dataclass(slots=True)
class IndentedJson:
    """indent: spaces of each level. root: the arguments' schema, to which references lead."""

    root: Schema
    rules: LarkRules
    indent: int
    is_ascii: bool
    _names: dict[str, str] = field(default_factory=dict)

    def value(self, schema: Any, column: int, level: int = 0) -> str:
        """Returns the name of a rule for a value whose last line has `column` spaces before it."""
        if not isinstance(schema, dict) or schema.keys() == {"$ref"}:
            schema = resolve(schema, self.root)
        key = f"{column} {json.dumps(schema)}"
        if key not in self._names:
            self._names[key] = self.rules.rule(" | ".join(self._forms(schema, column, level)))
        return self._names[key]

    def _forms(self, schema: Schema, column: int, level: int) -> Iterator[str]:
        keywords, types = schema.keys() - _SHARED, types_of(schema, self.root)
        if types and types <= _SCALARS:
            yield self._library(schema, FIXED_WHITESPACE)
        elif level >= _MAX_LEVELS or (level == 0 and _ELSEWHERE.search(json.dumps(schema))):
            yield self._library(schema, self._loose(column))
        elif not keywords:
            yield self._library({"type": sorted(_SCALARS)}, FIXED_WHITESPACE)
            yield from self._object(_ANY, column, level)
            yield from self._array(_ANY, column, level)
        elif keywords == {"anyOf"} and schema["anyOf"] and False not in schema["anyOf"]:
            yield from (self.value(each, column, level + 1) for each in schema["anyOf"])
        elif types == {"object"} and keywords <= _OF_OBJECTS and _is_plain_object(schema):
            yield from self._object(schema, column, level)
        elif types == {"array"} and keywords <= _OF_ARRAYS and _is_plain_array(schema):
            yield from self._array(schema, column, level)
        else:
            yield self._library(schema, self._loose(column))

    def _object(self, schema: Schema, column: int, level: int) -> Iterator[str]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        members = [
            Member(self.rules.rule(f"{quoted(self._key(key) + ': ')} {self.value(each, column + self.indent, level + 1)}"), key in required)
            for key, each in properties.items()
        ]  # fmt: skip
        others, more = schema.get("additionalProperties", True), ""
        if others is not False:
            inner = self.value(others if isinstance(others, dict) else _ANY, column + self.indent, level + 1)
            more = self.rules.rule(f'{self._other_key(list(properties))} ": " {inner}')
        if not required:
            yield '"{}"'
        if members or more:
            inside = self.rules.members(members, f",{self._line(column + self.indent)}", more, may_be_none=False)
            yield f"{quoted('{' + self._line(column + self.indent))} {inside} {quoted(self._line(column) + '}')}"

    def _array(self, schema: Schema, column: int, level: int) -> Iterator[str]:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not least:
            yield '"[]"'
        if most == 0:
            return
        item = self.value(schema.get("items", _ANY), column + self.indent, level + 1)
        line = self._line(column + self.indent)
        times = f"{{{max(least - 1, 0)},{'' if most is None else most - 1}}}"
        yield f"{quoted('[' + line)} {item} ({quoted(',' + line)} {item}){times} {quoted(self._line(column) + ']')}"

    def _line(self, column: int) -> str:
        return "\n" + " " * column

    def _key(self, key: str) -> str:
        return json.dumps(key, ensure_ascii=self.is_ascii)

    def _other_key(self, properties: list[str]) -> str:
        other = r'/"[^"\\\x00-\x1f]*"/'
        if not properties:
            return self.rules.terminal(other)
        known = self.rules.terminal(" | ".join(quoted(self._key(each)) for each in properties))
        return self.rules.terminal(f"{other} & ~{known}")

    def _loose(self, column: int) -> dict[str, Any]:
        """Returns the library's options for a value whose lines may be indented to any of its levels."""
        line = f"\\n {{{column}}}( {{{self.indent}}}){{0,{_LOOSE_LEVELS}}}"
        return {"whitespace_flexible": True, "whitespace_pattern": line, "item_separator": ",", "key_separator": ": "}

    def _library(self, schema: Schema, white_space: dict[str, Any]) -> str:
        shared = {key: self.root[key] for key in _SHARED if key in self.root}
        return self.rules.json(shared | schema, white_space)


def _is_plain_object(schema: Schema) -> bool:
    properties = schema.get("properties", {})
    return properties.keys() >= set(schema.get("required", ())) and False not in properties.values()


def _is_plain_array(schema: Schema) -> bool:
    return isinstance(schema.get("items", _ANY), dict) and schema.get("minItems", 0) <= schema.get("maxItems", math.inf)
