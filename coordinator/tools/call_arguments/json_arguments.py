"""Arguments as a JSON object: `{"city": "Paris", "days": 3}`."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.tools.call_arguments.indented_json import IndentedJson
from coordinator.tools.call_arguments.lark_rules import LarkRules
from coordinator.tools.call_arguments.notation import JSON, Notation, find_notation
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_arguments.schema_types import Schema
from coordinator.tools.call_arguments.style import (
    HARD,
    OBJECT,
    UNSORTED,
    Arguments,
    ArgumentsStyle,
    Learned,
    Sample,
    text_of,
)
from coordinator.tools.json_scanner import SPACE, Reading


@dataclass(frozen=True, slots=True)
class JsonArguments(ArgumentsStyle):
    notation: Notation = JSON

    @classmethod
    def learn(cls, samples: Sequence[Sample]) -> Learned | None:
        found = [_object_in(text_of(samples, each), each) for each in (OBJECT, HARD, UNSORTED)]
        if None in found:
            return None
        (middle, written, tail), *others = [each for each in found if each is not None]
        # One notation has to fit all: those that differ in the order of keys alone write the first alike.
        texts = [
            (OBJECT, written),
            *((each, text) for each, (_, text, _) in zip((HARD, UNSORTED), others, strict=True)),
        ]
        notation = find_notation(*texts)
        return None if notation is None else Learned(middle, cls(notation), tail)

    def write(self, arguments: Arguments) -> str:
        return self.notation.write(arguments)

    def read(self, reader: ArgumentsReader, schema: Schema, tail: str) -> Reading[bool]:
        yield from reader.take_run(SPACE)
        if (yield from reader.peek()) != "{":
            return False
        return (yield from reader.pass_value())

    def grammar(self, schema: Schema, rules: LarkRules, tail: str) -> str:
        notation = self.notation
        if not notation.indent:
            return rules.json(schema, notation.white_space)
        return IndentedJson(schema, rules, notation.indent, notation.is_ascii).value(schema, notation.margin)

    @property
    def marks(self) -> tuple[str, ...]:
        return ()

    @property
    def description(self) -> str:
        return "a JSON object"


def _object_in(text: str, arguments: Arguments) -> tuple[str, str, str] | None:
    """Splits a text around the JSON of these arguments."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            value, end = None, 0
        if value == arguments:
            return text[:at], text[at:end], text[end:]
        at = text.find("{", at + 1)
    return None
