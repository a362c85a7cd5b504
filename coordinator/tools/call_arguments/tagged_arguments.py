"""Arguments one by one, each between texts of the template: `<parameter=city>\nParis\n</parameter>`.

Strings stand as they are, so that the tool's schema says whether 3 is a number; or the text before the value does.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.tools.call_arguments.lark_rules import ANY_TEXT, LarkRules, Member, pattern
from coordinator.tools.call_arguments.notation import JSON, NOTATIONS, Notation, text_pattern
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_arguments.schema_types import (
    STRING,
    Schema,
    as_json,
    properties_of,
    resolve,
    type_of,
    types_of,
    unenforced_in,
)
from coordinator.tools.call_arguments.style import (
    ARRAY,
    FRACTION,
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
    common_prefix,
    common_suffix,
    text_of,
)
from coordinator.tools.json_scanner import SPACE, Reading, run_without


@dataclass(frozen=True, slots=True)
class TaggedArguments(ArgumentsStyle):
    """begin, between, end: texts before a key, before and after its value. separator: between arguments.

    typed: the text before a value that is no string, by type, where it is another. quotes_strings: they are JSON.
    """

    begin: str
    between: str
    end: str
    separator: str = ""
    typed: tuple[tuple[str, str], ...] = ()
    quotes_strings: bool = False
    scalars: Notation = JSON
    objects: Notation = JSON
    arrays: Notation = JSON

    @classmethod
    def learn(cls, samples: Sequence[Sample]) -> Learned | None:
        none, one, two = (text_of(samples, each) for each in (NO_ARGUMENTS, ONE_TEXT, TWO_TEXTS))
        before, has_key, rest = one.partition(KEY)
        between, has_text, after = rest.partition(TEXT)
        if not (has_key and has_text and between) or not two.startswith(before + KEY + between + TEXT):
            return None
        middle = common_prefix(none, before)
        tail = common_suffix(none[len(middle) :], after)
        begin, end = before[len(middle) :], after[: len(after) - len(tail)]
        joint = two[len(before + KEY + between + TEXT) :].partition(OTHER_KEY)[0]
        if not joint.startswith(end) or not joint[len(end) :].endswith(begin):
            return None
        separator = joint[len(end) : len(joint) - len(begin)]
        hard = text_of(samples, HARD)
        quotes_strings = HARD_TEXT not in hard and between.endswith('"') and end.startswith('"')
        if quotes_strings:
            between, end = between[:-1], end[1:]
        if not end:
            return None
        found: dict[str, tuple[str, Notation]] = {}
        for arguments in (NUMBER, FRACTION, YES, NO, NULL, OBJECT, ARRAY):
            text = text_of(samples, arguments).removeprefix(before + KEY)
            value = arguments[KEY]
            inner = text[: len(text) - len(end + tail)]
            fits = next((each for each in NOTATIONS if inner.endswith(each.write(value))), None)
            if fits is not None:
                found[type_of(value)] = (inner[: len(inner) - len(fits.write(value))], fits)
        if not {"integer", "number", "boolean", "object", "array"} <= found.keys():
            return None
        typed = tuple((kind, text) for kind, (text, _) in found.items() if text != between)
        spelled = found["boolean"][1]
        null = found.get("null", found["boolean"])[1]
        scalars = Notation(words=(*spelled.words[:2], null.words[2]), sorts_keys=_is_sorted(text_of(samples, UNSORTED)))
        style = cls(
            begin, between, end, separator, typed, quotes_strings, scalars, found["object"][1], found["array"][1]
        )
        return Learned(middle, style, tail)

    def write(self, arguments: Arguments) -> str:
        return self.separator.join(
            f"{self.begin}{key}{self._before(type_of(value))}{self._value(value)}{self.end}"
            for key, value in self.scalars.ordered(arguments)
        )

    def _before(self, kind: str) -> str:
        return dict(self.typed).get(kind, self.between)

    def _value(self, value: Any) -> str:
        if isinstance(value, str) and not self.quotes_strings:
            return value
        return self._notation(type_of(value)).write(value)

    def _notation(self, kind: str) -> Notation:
        return {"object": self.objects, "array": self.arrays}.get(kind, self.scalars)

    def read(self, reader: ArgumentsReader, schema: Schema, tail: str) -> Reading[bool]:
        properties = properties_of(schema, schema)
        marks = (
            {self.between: STRING}
            if not self.typed
            else {text: kind for kind, text in self.typed} | {self.between: STRING}
        )
        # Those without white space too, which a model may leave out.
        befores = tuple(dict.fromkeys([*marks, *(each.replace("\n", "") for each in marks if each.strip())]))
        key_characters = run_without("\n" + "".join(each[0] for each in befores))
        follows, comma = "", self.separator.strip()
        reader.emit("{")
        while True:
            yield from reader.take_run(SPACE)
            if follows and comma and not (yield from reader.take_next(comma)):
                break
            yield from reader.take_run(SPACE)
            if not (yield from self._begins(reader, tail)):
                break
            key = yield from reader.take_run(key_characters)
            before = yield from reader.sees(*befores)
            if not key or not (yield from reader.take_next(before)):
                break
            reader.emit(f"{follows}{json.dumps(key, ensure_ascii=False)}: ")
            types = types_of(properties.get(key, {}), schema)
            if self.typed:
                types = (
                    frozenset((STRING,))
                    if before in (self.between, self.between.replace("\n", ""))
                    else types - {STRING}
                )
            if not (yield from self._read_value(reader, types, tail)):
                return False
            follows = ", "
        if reader.ends_in(self.begin.strip(), comma, *befores, *tail.split()[:1]):
            return False
        reader.emit("}")
        return True

    def _begins(self, reader: ArgumentsReader, tail: str) -> Reading[bool]:
        """Takes what stands before a key, if another argument comes."""
        if begin := self.begin.strip():
            return (yield from reader.take_next(begin))
        is_over = bool(tail.split()) and bool((yield from reader.sees(tail.split()[0])))
        return not is_over and bool((yield from reader.peek()))

    def _read_value(self, reader: ArgumentsReader, types: frozenset[str], tail: str) -> Reading[bool]:
        end = self.end.rstrip() or self.end
        # A mark of one character, such as a quote, may stand in the text too.
        marks = (end,) if len(end) > 1 else (self.end + self.separator + self.begin, self.end + tail)
        if types == {STRING} and not self.quotes_strings:
            reader.emit('"')
            is_whole = yield from reader.take_until(marks, len(end), reader.emit_text)
            reader.emit('"' if is_whole else "")
            return is_whole
        parts: list[str] = []
        is_whole = yield from reader.take_until(marks, len(end), parts.append)
        if is_whole:
            reader.emit(as_json("".join(parts), types if not self.quotes_strings else frozenset()))
        return is_whole

    def grammar(self, schema: Schema, rules: LarkRules, tail: str) -> str:
        properties, required = properties_of(schema, schema), resolve(schema, schema).get("required", [])
        members = [
            Member(rules.rule(f"{rules.literal(self.begin + key)} ({self._value_grammar(each, schema, rules)})"), key in required)
            for key, each in self.scalars.ordered(properties)
        ]  # fmt: skip
        more = ""
        if not properties and schema.get("additionalProperties", True) is not False:
            key = rules.terminal(pattern(r"[A-Za-z0-9_.$-]+"))
            more = rules.rule(f"{rules.literal(self.begin)} {key} ({self._value_grammar({}, schema, rules)})")
        return rules.members(members, self.separator, more)

    def _value_grammar(self, schema: Any, root: Schema, rules: LarkRules) -> str:
        """Returns alternatives of what stands between a key and the next argument."""
        schema = resolve(schema, root)
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            texts = (f"{self._before(type_of(each))}{self._value(each)}{self.end}" for each in values)
            return " | ".join(map(rules.literal, texts))
        types = types_of(schema, root)
        kinds = sorted(types or ("string", "number", "boolean", "null", "array", "object"))
        is_text = STRING in kinds and not self.quotes_strings
        if is_text and not self.typed:
            # Whatever else it may be is a text too.
            kinds = [STRING]
        return " | ".join(self._typed_grammar(kind, schema, len(kinds) == 1, root, rules) for kind in kinds)

    def _typed_grammar(self, kind: str, schema: Schema, is_all: bool, root: Schema, rules: LarkRules) -> str:
        before = rules.literal(self._before(kind))
        if kind == STRING and not self.quotes_strings:
            return f"{before} {rules.text_until(self.end, text_pattern(schema) if is_all else ANY_TEXT)}"
        alone = (
            schema
            if is_all and "type" in schema
            else {"type": kind} | {key: each for key, each in schema.items() if key in _OF_TYPE.get(kind, ())}
        )
        return f"{before} {self._notation(kind).grammar(alone, root, rules)} {rules.literal(self.end)}"

    def unenforced(self, schema: Schema) -> list[str]:
        return unenforced_in(schema, frozenset(("allOf",) if self.quotes_strings else ("pattern", "format", "allOf")))

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.begin, self.between, self.end, self.separator, *(text for _, text in self.typed))

    @property
    def description(self) -> str:
        return f"{self.begin}NAME{self.between}VALUE{self.end}"


# What constrains a value of a type beside others.
_OF_TYPE = {
    "object": ("properties", "required", "additionalProperties"), "array": ("items", "minItems", "maxItems"),
    "integer": ("minimum", "maximum"), "number": ("minimum", "maximum"),
}  # fmt: skip


def _is_sorted(text: str) -> bool:
    return text.find(KEY) < text.find(OTHER_KEY)
