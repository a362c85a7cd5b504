"""Arguments as keywords: Python's `city="Paris", days=3`, or Gemma 4's `city:<|"|>Paris<|"|>,days:3`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from coordinator.tools.call_arguments.lark_rules import LarkRules, Member, pattern
from coordinator.tools.call_arguments.notation import JSON, NOTATIONS, Notation
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_arguments.schema_types import (
    Schema,
    properties_of,
    resolve,
    type_of,
    types_of,
    unenforced_in,
)
from coordinator.tools.call_arguments.style import (
    ARRAY,
    HARD,
    HARD_TEXT,
    KEY,
    NO,
    NO_ARGUMENTS,
    NULL,
    NUMBER,
    OBJECT,
    ONE_TEXT,
    OTHER_KEY,
    TEXT,
    TWO_TEXTS,
    UNSORTED,
    YES,
    Arguments,
    ArgumentsStyle,
    Learned,
    Sample,
    text_of,
)
from coordinator.tools.json_scanner import SPACE, Reading, run_without

# Of numbers, strings and lists, which have no JSON grammar here.
_UNENFORCED = frozenset(
    ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "pattern", "format", "minItems", "maxItems", "allOf")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KeywordArguments(ArgumentsStyle):
    """assign: between key and value. separator: between arguments. scalars: of strings, numbers and words."""

    assign: str
    separator: str
    scalars: Notation
    objects: Notation = JSON
    arrays: Notation = JSON

    @classmethod
    def learn(cls, samples: Sequence[Sample]) -> Learned | None:
        one, number = text_of(samples, ONE_TEXT), text_of(samples, NUMBER)
        middle, _, rest = one.partition(KEY)
        opening, has_text, closing = rest.partition(TEXT)
        if not has_text or not number.startswith(middle + KEY):
            return None
        assign, has_number, tail = number[len(middle + KEY) :].partition("3")
        quote = opening.removeprefix(assign)
        if (
            not (has_number and assign and quote)
            or closing != quote + tail
            or text_of(samples, NO_ARGUMENTS) != middle + tail
        ):
            return None
        separator = (
            text_of(samples, TWO_TEXTS)
            .removeprefix(f"{middle}{KEY}{assign}{quote}{TEXT}{quote}")
            .partition(OTHER_KEY)[0]
        )
        if not separator.strip():
            return None

        def inner(arguments: Arguments) -> str:
            text = text_of(samples, arguments)
            return text[len(middle + KEY + assign) : len(text) - len(tail)]

        words = tuple(inner(each) for each in (YES, NO, NULL))
        scalars = Notation(quote, "none", (words[0], words[1], words[2]), separator, assign, False)
        unsorted = text_of(samples, UNSORTED)
        scalars = replace(scalars, sorts_keys=unsorted.find(KEY) < unsorted.find(OTHER_KEY))
        hard = inner(HARD)
        fits = [each for each in ("none", "json", "python") if replace(scalars, escapes=each).write(HARD_TEXT) == hard]
        if not fits:
            return None
        scalars = replace(scalars, escapes=fits[0])
        known = (*NOTATIONS, scalars, replace(scalars, quotes_keys=True))
        objects, arrays = (
            next((each for each in known if each.write(value[KEY]) == inner(value)), None) for value in (OBJECT, ARRAY)
        )
        if objects is None or arrays is None:
            return None
        return Learned(middle, cls(assign, separator, scalars, objects, arrays), tail)

    def write(self, arguments: Arguments) -> str:
        return self.separator.join(
            f"{key}{self.assign}{self._notation(type_of(value)).write(value)}"
            for key, value in self.scalars.ordered(arguments)
        )

    def _notation(self, kind: str) -> Notation:
        return {"object": self.objects, "array": self.arrays}.get(kind, self.scalars)

    def read(self, reader: ArgumentsReader, schema: Schema, tail: str) -> Reading[bool]:
        closing = tail.split()[0] if tail.split() else ""
        assign, comma = self.assign.strip(), self.separator.strip()
        key_characters = run_without(" \t\r\n" + assign[0] + closing[:1])
        ends = (comma, closing[:1] or comma)
        follows = ""
        reader.emit("{")
        while True:
            yield from reader.take_run(SPACE)
            if not (yield from reader.peek()) or (yield from reader.sees(closing)):
                break
            key = yield from reader.take_run(key_characters)
            yield from reader.take_run(SPACE)
            if not key or not (yield from reader.take_next(assign)):
                break
            reader.emit(f"{follows}{json.dumps(key, ensure_ascii=False)}: ")
            yield from reader.take_run(SPACE)
            kind = {"[": "array", "{": "object"}.get((yield from reader.peek()), "")
            if not (yield from self._notation(kind).read(reader, ends)):
                return False
            follows = ", "
            yield from reader.take_run(SPACE)
            if not (yield from reader.take_next(comma)):
                break
        if reader.ends_in(closing, assign, comma):
            return False
        reader.emit("}")
        return True

    def grammar(self, schema: Schema, rules: LarkRules, tail: str) -> str:
        properties, required = properties_of(schema, schema), resolve(schema, schema).get("required", [])
        members = [
            Member(rules.rule(f"{rules.literal(key + self.assign)} {self._value_grammar(each, schema, rules)}"), key in required)
            for key, each in self.scalars.ordered(properties)
        ]  # fmt: skip
        more = ""
        if not properties and schema.get("additionalProperties", True) is not False:
            key = rules.terminal(pattern("[A-Za-z_][A-Za-z0-9_]*"))
            more = rules.rule(f"{key} {rules.literal(self.assign)} {self._value_grammar({}, schema, rules)}")
        return rules.members(members, self.separator, more)

    def _value_grammar(self, schema: Any, root: Schema, rules: LarkRules) -> str:
        types = types_of(schema, root)
        if len(types) == 1:
            return self._notation(next(iter(types))).grammar(schema, root, rules)
        return self.scalars.grammar(schema, root, rules)

    def unenforced(self, schema: Schema) -> list[str]:
        return unenforced_in(schema, _UNENFORCED)

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.assign, self.separator, self.scalars.quote)

    @property
    def description(self) -> str:
        return f"NAME{self.assign}{self.scalars.quote}VALUE{self.scalars.quote}"
