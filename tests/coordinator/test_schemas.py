"""An answer under a schema that is accepted can always end, and is valid against the schema as the client wrote it."""

import contextlib
import itertools
import json
import math
import random
from typing import Any

import jsonschema
import numpy as np
import pytest

from coordinator.format_grammars import make_grammar
from coordinator.patterns import UnsupportedPattern, read_pattern
from coordinator.schema_values import CHECKS
from coordinator.schemas import (
    ALONE,
    ANNOTATIONS,
    BY_NAME,
    LISTED,
    MAX_DEPTH,
    NOT_CONSTRAINTS,
    Schema,
    enforceable,
)
from paceline.errors import InvalidArgument
from paceline.grammar import Grammar, GrammarEngine, Guide
from paceline.output_format import OutputFormat
from tests.thinking import EOS_ID, make_backend

BYTES = make_backend(has_special_marks=False)
ENGINE = GrammarEngine(BYTES.to_str().encode(), BYTES.get_vocab_size(), (EOS_ID,))
CLOSING = {BYTES.token_to_id(each) for each in '"}],:019a'}
NAMES = ("a", "b", "ab", "x1", "y")
PATTERNS = (
    "^a$",
    "^(a|b)$",
    "^a",
    "^(?:x[12]|y)$",
    "^[a-c]{1,2}$",
    ".*",
    "^.*$",
    "^\\d+$",
    "b$",
    "^(?!a)",
    "[^\\s\\S]",
    "^[\\s\\S]*$",
)
NUMBERS = (
    0,
    1,
    -1,
    5,
    5.0,
    5.5,
    0.1,
    -0.5,
    100000,
    99999,
    2**53,
    2**53 + 1,
    1234567890123456789,
    2**63 - 1,
    -(2**63),
    1e20,
    1e-300,
)
SEEDS = range(6)


def walk(guide: Guide, coin: random.Random, most: int = 200) -> str | None:
    """Returns an answer of tokens drawn among those that may follow, or None if it is longer than `most`."""
    completion = list[int]()
    while len(completion) < most:
        bits = np.unpackbits(guide.mask(completion).view(np.uint8), bitorder="little")
        ids = [int(each) for each in np.flatnonzero(bits)]
        assert ids, f"nothing may follow {BYTES.decode(completion)}"
        if ids == [EOS_ID] or guide.is_over(completion) or (EOS_ID in ids and coin.random() < 0.4):
            return BYTES.decode(completion)
        ids = [each for each in ids if each != EOS_ID]
        likely = [each for each in ids if each in CLOSING]
        completion.append(coin.choice(likely if likely and coin.random() < 0.7 else ids))
    return None


def compiled(schema: Schema) -> tuple[Grammar, list[str]]:
    """Returns the grammar, and what it does not enforce. Raises InvalidArgument."""
    left_out = list[str]()
    grammar = ENGINE.grammar(make_grammar(OutputFormat.of_schema(schema, fixed_whitespace=True), left_out))
    return grammar, left_out + grammar.unenforced


def answers(schema: Schema, seeds: range = SEEDS) -> tuple[list[str], list[str]]:
    """Returns some answers, and what is not enforced. Raises InvalidArgument."""
    grammar, left_out = compiled(schema)
    found = [walk(grammar.guide(), random.Random(seed)) for seed in seeds]
    return [each for each in found if each is not None], left_out


def is_valid(schema: Schema, text: str) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(json.loads(text))


def make_odd(coin: random.Random, depth: int = 0) -> Schema:
    """Returns a valid schema with keywords that meet in odd ways."""
    kind = coin.choice(
        ("object", "object", "number", "integer", "any") if depth < 2 else ("number", "integer", "string")
    )
    schema: Schema = {} if kind == "any" else {"type": kind}
    if kind == "object":
        schema["properties"] = {each: make_odd(coin, depth + 1) for each in coin.sample(NAMES, coin.randint(0, 2))}
        schema["patternProperties"] = {
            each: coin.choice([True, False, make_odd(coin, depth + 1)])
            for each in coin.sample(PATTERNS, coin.randint(0, 2))
        }
        schema["required"] = coin.sample(NAMES, coin.randint(0, 1))
        schema["additionalProperties"] = coin.choice([False, False, {"type": "null"}])
        if coin.random() < 0.2:
            schema[coin.choice(["minProperties", "maxProperties"])] = coin.choice([0, 1, 2.0])
    elif kind in ("number", "integer"):
        for name in coin.sample(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), coin.randint(0, 2)):
            schema[name] = coin.choice(NUMBERS)
        if coin.random() < 0.2:
            schema["multipleOf"] = coin.choice([1, 2.0, 0.5, 7, 3600, 2**40])
    elif kind == "string":
        schema |= coin.choice([{"pattern": coin.choice(PATTERNS)}, {"maxLength": 3.0}, {"minLength": 1}])
    else:
        schema[coin.choice(["anyOf", "allOf"])] = [make_odd(coin, depth + 1) for _ in range(2)]
    return schema


@pytest.mark.parametrize("seed", range(8))
def test_an_answer_under_an_odd_schema_can_end_and_is_valid(seed: int) -> None:
    coin, num_answers = random.Random(seed), 0
    for _ in range(25):
        schema = make_odd(coin)
        # It may be refused, but before the first token.
        is_accepted = False
        with contextlib.suppress(InvalidArgument):
            compiled(schema)
            is_accepted = True
        for text in answers(schema, range(4))[0] if is_accepted else ():
            num_answers += 1
            assert compiled(schema)[1] or is_valid(schema, text), (json.dumps(schema), text)
    assert num_answers > 20


CLOSED: Schema = {"type": "object", "additionalProperties": False}
ODD: dict[str, Schema] = {
    "the only key of a pattern is named": CLOSED | {"properties": {"a": {"type": "integer"}}, "patternProperties": {"^a$": {"minimum": 5}}},
    "both keys of a pattern are named": CLOSED | {"properties": {"a": {"type": "null"}, "b": {"type": "null"}}, "patternProperties": {"^(a|b)$": {}}},
    "named in another schema": {"type": "object", "allOf": [CLOSED | {"patternProperties": {"^[ab]$": {"type": "null"}}, "properties": {"b": {}}}, {"properties": {"a": {"type": "null"}}}]},
    "named as required": CLOSED | {"patternProperties": {"^a$": {"type": "null"}}, "required": ["a"]},
    "a pattern forbids every key": {"type": "object", "patternProperties": {"": False}},
    "a pattern of every key": {"type": "object", "patternProperties": {"^[\\s\\S]*$": {"type": "null"}}, "additionalProperties": False},
    "keys of two patterns": CLOSED | {"patternProperties": {"^(a|b)$": {"type": "integer"}, "^a": {"minimum": 3}}},
    "5 is not above 5": {"type": "number", "exclusiveMinimum": 5, "maximum": 5.5},
    "0 is not above 0": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
    "beyond doubles": {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**53 + 3},
    "an open bound beyond doubles": {"type": "integer", "exclusiveMinimum": 3056932604548137731},
    "64-bit integers": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "all doubles": {"type": "number", "minimum": -1.7976931348623157e308, "maximum": 1.7976931348623157e308},
    "whole doubles": {"type": "string", "minLength": 1.0, "maxLength": 2.0},
    "no limit": {"type": "string", "maxLength": 2**53},
    "a list": {"type": "array", "items": {"type": "null"}, "minItems": 1.0, "maxItems": 2, "uniqueItems": False},
    "a pattern in ECMA's words": {"type": "string", "pattern": "^[[&&a]\\/\\cA{,2}$"},
}  # fmt: skip


@pytest.mark.parametrize("name", ODD)
def test_what_a_client_wrote_is_kept_to_in_full(name: str) -> None:
    found, left_out = answers(ODD[name], range(12))
    assert left_out == []
    assert found
    for text in found:
        assert name == "a pattern in ECMA's words" or is_valid(ODD[name], text), text


@pytest.mark.parametrize("value", [
    1234567890123456789, 2**53 + 1, -(2**63) + 1, 10**25 + 1, 1e300, {"a": [2**60 + 1]},
])  # fmt: skip
def test_a_constant_is_exact_or_refused(value: Any) -> None:
    for schema in ({"const": value}, {"enum": [1, value]}, {"type": "object", "properties": {"a": {"const": value}}}):
        with pytest.raises(InvalidArgument, match="is no number that a double holds") as caught:
            answers(schema)
        assert caught.value.field == "json_schema"


@pytest.mark.parametrize(
    "value", [2**53, -(2**53), 2**62, 1e22, 1.0, -0.0, 0.1, 5e-324, None, "é", [1, {"b": 2}], 12345.678]
)
def test_a_constant_that_a_double_holds_is_written(value: Any) -> None:
    found, left_out = answers({"const": value}, range(1))
    assert left_out == []
    assert [json.loads(each) for each in found] == [value] or value == 5e-324


UNABLE: dict[str, tuple[Schema, str]] = {
    "look-ahead": ({"type": "string", "pattern": "^(?=a)b$"}, "/pattern: look-around"),
    "back reference": ({"type": "string", "pattern": "(a)\\1"}, "/pattern: a back reference"),
    "word boundary": ({"type": "string", "pattern": "\\bword\\b"}, "/pattern: a word boundary"),
    "no pattern": ({"type": "string", "pattern": "("}, "/pattern: a group without an end"),
    "large": ({"type": "string", "pattern": "^((a{999}){999}){999}$"}, "/pattern: more than"),
    "optional": ({"type": "string", "pattern": "^" + "a?" * 99 + "$"}, "/pattern: more than"),
    "key": ({"type": "object", "patternProperties": {"^(?!a/)": {}}}, "/patternProperties/^(?!a~1): look-around"),
    "keys": ({"type": "object", "patternProperties": {"a": {}, "b": {}}}, "/patternProperties/b: another pattern may match"),
    "draft": ({"$schema": "https://example.com/x", "type": "null"}, "/$schema: an unknown draft"),
    "half": ({"type": "string", "maxLength": 10.5}, "/maxLength: a whole number"),
    "negative": ({"type": "array", "minItems": -1}, "/minItems: a whole number"),
    "text": ({"type": "string", "maxLength": "3"}, "/maxLength: a number"),
    "beyond": ({"type": "integer", "minimum": 1e19}, "/minimum: 1e+19 is beyond"),
    "digits": ({"type": "number", "multipleOf": 123456789.5}, "/multipleOf: 123456789.5 has too many digits"),
    "digits of a double": ({"type": "number", "multipleOf": 0.07}, "/multipleOf: 0.07 has too many digits as a double"),
    "twice": ({"type": "object", "minProperties": 2}, "/minProperties: more than the required"),
    "draft 3": ({"type": "object", "properties": {"a": {"required": True}}}, "/properties/a/required: a list of names"),
    "circle": ({"type": "object", "properties": {"a": {"$ref": "#", "minProperties": 1}}}, "/properties/a/minProperties: beside"),
    "circles": (
        {"type": "object", "properties": {"a": {"anyOf": [{"$ref": "#"}, {"type": "null"}], "maxProperties": 1}}},
        "/properties/a/maxProperties: beside",
    ),
    "referred to": ({"$ref": "#/components/x", "components": {"x": {"type": "string", "pattern": "(?<=a)b"}}}, "/components/x/pattern: look"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNABLE)
def test_what_cant_be_enforced_is_named_and_refused_under_strict_alone(name: str) -> None:
    schema, words = UNABLE[name]
    _, left_out = answers(schema, range(2))
    assert len(left_out) == 1
    assert left_out[0].startswith(words)
    with pytest.raises(InvalidArgument) as caught:
        ENGINE.grammar(make_grammar(OutputFormat.of_schema(schema, strict=True))).guide().mask([])
    assert caught.value.field in ("json_schema", "format")
    assert name == "keys" or words in str(caught.value)


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("end", ["", "#"])
@pytest.mark.parametrize("draft", ["draft-04", "draft-06", "draft-07", "draft/2019-09", "draft/2020-12"])
def test_a_draft_is_known_however_it_is_written(scheme: str, draft: str, end: str) -> None:
    schema = {"$schema": f"{scheme}://json-schema.org/{draft}/schema{end}", "$id": "http://[", "const": 3}
    assert answers(schema) == (["3"] * len(SEEDS), [])


@pytest.mark.parametrize(("schema", "words"), [
    ({"properties": {"a": 3}}, "/properties/a"), ({"properties": []}, "/properties"), ({"anyOf": {}}, "/anyOf"),
    ({"items": [{}, 3]}, "/items/1"),
])  # fmt: skip
def test_what_is_no_schema_is_refused(schema: Schema, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        answers(schema)


def test_depth_is_limited_and_the_clients_schema_stays_as_it_is() -> None:
    deep: Schema = {"type": "null", "title": "x"}
    for _ in range(MAX_DEPTH):
        deep = {"type": "object", "properties": {"a": deep}}
    before = json.dumps(deep)
    assert enforceable(deep, strict=True, field="f")[1] == []
    assert json.dumps(deep) == before
    with pytest.raises(InvalidArgument, match="levels") as caught:
        enforceable({"items": deep}, strict=False, field="f")
    assert caught.value.field == "f"


def test_a_pattern_in_other_words_matches_the_same() -> None:
    for text, same in (
        ("^a{,3}$", {"a{,3}"}), ("^[[a]$", {"[", "a"}), ("^\\0\\cJ$", {"\0\n"}), ("^\\ud83d\\ude00$", {"\U0001f600"}),
        ("^(?<name>x|y)z?$", {"x", "y", "xz", "yz"}), ("(?i)^ab$", {"ab", "AB", "aB", "Ab"}), ("x[^\\s\\S]", set()),
    ):  # fmt: skip
        assert read_pattern(text).texts == same
    for text in ("a**", "*", "(?#x)", "[z-a]", "[[:alpha:]]", "a^b", "(^a)*", "\\q", "[]a]", ")", "a\\"):
        with pytest.raises(UnsupportedPattern):
            read_pattern(text)


@pytest.mark.parametrize("text", ["a{900000000,999999999}", "^" * 100_000, "$" * 100_000])
def test_reading_a_pattern_ends(text: str) -> None:
    """In a time that its length limits: each of these took from many minutes to years."""
    assert read_pattern(text).weight < 3


def test_patterns_of_long_keys_are_told_apart_by_their_beginnings() -> None:
    patterns = {f"^[{first}-{last}]{'a' * 3000}.": True for first, last in (("a", "h"), ("i", "p"), ("b", "c"))}
    schema, left_out = enforceable({"type": "object", "patternProperties": patterns}, strict=False, field="json_schema")
    assert (len(schema["patternProperties"]), len(left_out)) == (2, 1)


def test_pointers_below_a_long_name_are_limited() -> None:
    inner = {"type": "object", "properties": {str(at): {} for at in range(1000)}}
    with pytest.raises(InvalidArgument, match="pointers"):
        enforceable({"properties": {"a" * 100_000: inner}}, strict=False, field="json_schema")


KEYWORDS = (
    *CHECKS,
    *BY_NAME,
    *LISTED,
    *ALONE,
    *ANNOTATIONS,
    *NOT_CONSTRAINTS,
    "type",
    "const",
    "enum",
    "required",
    "$ref",
    "not",
)
VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1.5, math.inf, math.nan, 2**70, "", "a", "#", "#/", "#/$defs/a", "(", [], [[]], [{}], [1], ["a"], [None],
    {}, {"a": []}, {"a": None}, {"a": 1}, {"a": {}}, {"": {}}, {"(": {}}, {"a": True}, [["a"]], [{"a": []}],
)  # fmt: skip
BESIDES: tuple[dict[str, Any], ...] = (
    {},
    {"type": "object", "properties": {"a": {}}},
    {"type": "integer"},
    {"anyOf": [{}]},
    {"$ref": "#"},
)


@pytest.mark.parametrize("keyword", sorted(set(KEYWORDS)))
def test_no_value_of_a_keyword_is_a_fault_of_ours(keyword: str) -> None:
    for value, beside, strict in itertools.product(VALUES, BESIDES, (False, True)):
        schema = {**beside, keyword: value}
        for each in (schema, {"properties": {"b": schema}}):
            with contextlib.suppress(InvalidArgument):
                enforceable(each, strict=strict, field="json_schema")
