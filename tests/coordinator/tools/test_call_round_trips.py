"""What a format writes its parser reads, however it is split and wherever it is cut; and its grammar allows it."""

import json
import random
from typing import Any

import jsonschema
import pytest
from llguidance import LLMatcher

from coordinator.tools.call_formats import CallFormat
from coordinator.tools.call_grammar import make_call_grammar
from coordinator.tools.call_parser import CallParser
from coordinator.tools.offered_tools import Tools
from paceline.errors import InvalidArgument
from tests.coordinator.tools.call_templates import FAMILIES
from tests.coordinator.tools.random_calls import IDS, check_round_trip, parse, random_calls, random_tools, written_calls
from tests.coordinator.tools.test_call_grammar import Vocabulary, embedded

each_format = pytest.mark.parametrize("call_format", [each.format for each in FAMILIES.values()], ids=list(FAMILIES))
CITY = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "near": {"type": "boolean"}}, "required": ["city"]}  # fmt: skip
LISTS = {"properties": {"tags": {"type": "array", "items": {"type": "string"}}, "at": {"type": "object", "properties": {"x": {"type": "number"}}}}}  # fmt: skip
TOOLS = Tools(({"name": "get", "parameters": CITY}, {"name": "get_list", "parameters": LISTS}, {"name": "ping"}))
# Short, so that a random walk comes to its end.
SHORT = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 3}, "near": {"type": "boolean"}, "kind": {"enum": ["a", 1, None]}}, "required": ["city"], "additionalProperties": False}  # fmt: skip
NUM_CALLS = 100


@each_format
def test_calls_written_are_calls_read(call_format: CallFormat) -> None:
    chance = random.Random(5)
    for at in range(NUM_CALLS):
        check_round_trip(chance, random_tools(chance), call_format, is_thorough=at % 50 == 0)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return embedded()


@each_format
def test_the_grammar_allows_what_is_written(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    chance = random.Random(7)
    for _ in range(2):
        tools = random_tools(chance)
        calls = random_calls(chance, tools, call_format)
        grammar = make_call_grammar(Tools(tools.functions, "required"), call_format, {}).text
        text = written_calls(call_format, calls)
        assert vocabulary.check(grammar, call_format.lead + text) in ("yes", "over"), (text, grammar)
        free = make_call_grammar(tools, call_format, {}).text
        assert vocabulary.check(free, text) in ("yes", "over"), (text, free)
        if not call_format.is_bare:
            assert vocabulary.check(free, f"Well.{call_format.text_separator}{text}") in ("yes", "over")


@each_format
def test_the_parser_reads_what_the_grammar_writes(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    tools = Tools(({"name": "get", "parameters": SHORT},), "get")
    grammar = make_call_grammar(tools, call_format, {}).text
    chance, num_read = random.Random(1), 0
    for _ in range(2):
        text = vocabulary.walk(grammar, chance)
        if text and "\ufffd" not in text:
            content, calls, is_whole = parse(tools, call_format, [text])
            assert (content, [name for name, _ in calls], is_whole) == ("", ["get"], True), text
            jsonschema.validate(json.loads(calls[0][1]), SHORT)
            num_read += 1
    assert num_read > 0


@each_format
def test_the_grammar_refuses_other_calls(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    grammar = make_call_grammar(Tools(TOOLS.functions, "required"), call_format, {}).text
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("got", {}),
        ("get", {"days": 3}),
        ("get", {"city": "a", "country": "b"}),
        ("ping", {"a": 1}),
    ]
    for call in wrong[:2] if call_format.arguments.description == "a JSON object" else wrong:
        assert vocabulary.check(grammar, written_calls(call_format, [call])) not in ("yes", "over"), call
    if not call_format.is_single and not call_format.is_bare:
        single = make_call_grammar(Tools(TOOLS.functions, "required", parallel=False), call_format, {}).text
        two = written_calls(call_format, [("get", {"city": "a"}), ("ping", {})])
        assert vocabulary.check(single, two) not in ("yes", "over")


MARKS = (
    "<tool_call>",
    "</tool_call>",
    "<|tool_call_start|>",
    '<|"|>',
    "<|START_ACTION|>",
    "｜DSML｜",
    "</arg_value>",
    "[TOOL_CALLS]",
)


@pytest.fixture(scope="module")
def with_marks() -> Vocabulary:
    return embedded(*MARKS)


@each_format
def test_every_grammar_compiles_with_marks_that_are_tokens(with_marks: Vocabulary, call_format: CallFormat) -> None:
    tokens = {mark: token for mark in MARKS if (token := with_marks.backend.token_to_id(mark)) is not None}
    assert len(tokens) == len(MARKS)
    for choice in ("auto", "required"):
        grammar = make_call_grammar(Tools(TOOLS.functions, choice), call_format, tokens).text
        matcher = LLMatcher(with_marks.engine, grammar)
        assert not matcher.is_error(), matcher.get_error()


def test_what_only_json_can_enforce_is_named_or_refused_for_a_strict_tool() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "string", "pattern": "x+"}, "n": {"type": "integer", "minimum": 1}},
    }
    places = {
        "Hermes": [],
        "Qwen3-Coder": ["/properties/a/pattern"],
        "LFM2": ["/properties/a/pattern", "/properties/n/minimum"],
    }
    for name, expected in places.items():
        left_out = make_call_grammar(Tools(({"name": "f", "parameters": schema},)), FAMILIES[name].format, {}).left_out
        assert left_out == [f"of f {each}: in no form of calls but JSON" for each in expected]
        strict = Tools(({"name": "f", "parameters": schema, "strict": True},))
        if expected:
            with pytest.raises(InvalidArgument, match="of f can't be enforced: /properties/a/pattern") as error:
                make_call_grammar(strict, FAMILIES[name].format, {})
            assert error.value.field == "tools[0].function.parameters"
        else:
            assert make_call_grammar(strict, FAMILIES[name].format, {}).left_out == []


def arguments_of(call_format: CallFormat, text: str, properties: dict[str, Any]) -> Any:
    tools = Tools(({"name": "get", "parameters": {"properties": properties}},))
    return json.loads(parse(tools, call_format, [text])[1][0][1])


@pytest.mark.parametrize(("schema", "written", "value"), [
    ({"type": "string"}, "3", "3"), ({"type": "integer"}, "3", 3), ({"type": "number"}, "3", 3), ({"type": "boolean"}, "True", True),
    ({"type": "null"}, "None", None), ({"type": ["string", "null"]}, "null", None), ({"type": ["string", "null"]}, "3", "3"),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "3", 3), ({"$ref": "#/properties/other"}, "3", "3"), ({"enum": ["3", "4"]}, "3", "3"),
    ({"type": "array"}, '["a", 1]', ["a", 1]), ({"type": "array"}, "['a', True]", ["a", True]), ({"type": "object"}, '{"a": 1}', {"a": 1}),
    ({}, "3", 3), ({}, "text", "text"), ({}, '{"a": 1}', {"a": 1}), ({"type": "integer"}, "three", "three"), ({"type": "string"}, "", ""),
    ({"type": "string"}, "\n", "\n"), ({"type": "string"}, '"a"', '"a"'),
])  # fmt: skip
def test_types_follow_the_schema(schema: dict[str, Any], written: str, value: object) -> None:
    call_format = FAMILIES["Qwen3-Coder"].format
    text = f"<tool_call>\n<function=get>\n<parameter=a>\n{written}\n</parameter>\n</function>\n</tool_call>"
    assert arguments_of(call_format, text, {"a": schema, "other": {"type": "string"}}) == {"a": value}


def test_strings_leave_as_they_come() -> None:
    call_format = FAMILIES["Qwen3-Coder"].format
    tools = Tools(({"name": "get", "parameters": CITY},))
    text = '<tool_call>\n<function=get>\n<parameter=city>\nPa"r\nis\n</parameter>\n<parameter=days>\n3'
    so_far = [parse(tools, call_format, [text[:end]], is_cut=True)[1] for end in range(len(text) + 1)]
    found = list(dict.fromkeys(calls[0][1] for calls in so_far if calls))
    assert found == ["{", '{"city": "', '{"city": "P', '{"city": "Pa', '{"city": "Pa\\"', '{"city": "Pa\\"r', '{"city": "Pa\\"r\\ni', '{"city": "Pa\\"r\\nis', '{"city": "Pa\\"r\\nis"', '{"city": "Pa\\"r\\nis", "days": ']  # fmt: skip


@pytest.mark.parametrize(("name", "text", "arguments"), [
    ("Qwen3-Coder", "<tool_call><function=get><parameter=city>\nParis\n</parameter></function></tool_call>", {"city": "Paris"}),
    ("Qwen3-Coder", "<tool_call>\n<function=get>\n<parameter=city>\nParis\n</parameter>", {"city": "Paris"}),
    ("GLM", "<tool_call>get<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>", {"city": "Paris"}),
    ("LFM2", '<|tool_call_start|>[get(city="it\'s", days = 3)]<|tool_call_end|>', {"city": "it's", "days": 3}),
    ("Gemma 4", '<|tool_call>call:get{city:<|"|>Paris<|"|>, days:3}<tool_call|>', {"city": "Paris", "days": 3}),
    ("Cohere", '<|START_ACTION|>[{"tool_name":"get","parameters":{"city":"a"},"tool_call_id":"7"}]<|END_ACTION|>', {"city": "a"}),
    ("Command R+", 'Action:\n```json\n[{"parameters": {"city": "a"}, "tool_name": "get"}]```', {"city": "a"}),
])  # fmt: skip
def test_calls_that_are_nearly_right_are_read(name: str, text: str, arguments: dict[str, Any]) -> None:
    content, calls, is_whole = parse(TOOLS, FAMILIES[name].format, [text])
    assert (content, [(called, json.loads(each)) for called, each in calls], is_whole) == (
        "",
        [("get", arguments)],
        True,
    )


NESTED = {
    "type": "object",
    "properties": {
        "city": {"type": "string"}, "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "maxItems": 2}, "any": {},
        "at": {"type": "object", "properties": {"x": {"type": "number", "minimum": 1}}, "required": ["x"]},
        "near": {"anyOf": [{"type": "array", "items": {"type": "boolean"}}, {"type": "null"}]},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}}, "all": {"allOf": [{"type": "array"}]},
    },
    "required": ["city"], "$defs": {"tag": {"enum": ["A", "B"]}},
}  # fmt: skip
FULL = {"city": "a", "tags": ["A", "B"], "any": {"q": [1, [], "x"], "r": {}}, "at": {"x": 1.5, "y": [2]}, "near": [True], "map": {"k": 1}, "all": [1, 2], "more": [{}]}  # fmt: skip


@pytest.mark.parametrize("name", ["Falcon", "Command R+"])
def test_indented_json_is_allowed_in_the_template_s_white_space_only(vocabulary: Vocabulary, name: str) -> None:
    call_format = FAMILIES[name].format
    grammar = make_call_grammar(Tools(({"name": "get", "parameters": NESTED},), "get"), call_format, {}).text

    def is_allowed(text: str) -> bool:
        return vocabulary.check(grammar, text) in ("yes", "over")

    deep: Any = 1
    for _ in range(8):
        deep = [{"a": deep}]
    for arguments in (FULL, {"city": "a"}, {"city": "a", "near": None, "other": 1}, {"city": "a", "any": deep}):
        assert is_allowed(call_format.lead + written_calls(call_format, [("get", arguments)])), arguments
    text = call_format.lead + written_calls(
        call_format, [("get", {"city": "a", "at": {"x": 1.5}, "near": [True], "more": [1]})]
    )
    start = text.index('"city"')
    for place in (at for at in range(start - 1, len(text)) if text[at] in " \n{}[]:,"):
        assert not is_allowed(f"{text[:place]} {text[place:]}"), text[place:]
        assert not is_allowed(f"{text[:place]}\n{text[place:]}"), text[place:]
        if text[place] in " \n":
            assert not is_allowed(text[:place] + text[place + 1 :]), text[place:]
    for old, new in (("1.5", "0.5"), ("true", "1"), ('"city"', '"town"'), ('"more"', '"city"')):
        assert not is_allowed(text.replace(old, new)), new


def test_an_indented_call_is_allowed_and_keeps_its_id(vocabulary: Vocabulary) -> None:
    call_format = FAMILIES["Falcon"].format
    text = written_calls(call_format, [("get", {"city": "Paris", "days": 3, "near": True})])
    assert vocabulary.check(make_call_grammar(TOOLS, call_format, {}).text, text) in ("yes", "over")
    first, *_ = CallParser(TOOLS, call_format, "request").feed(text)
    assert getattr(first, "id", "") == IDS[0]


def test_ids_that_the_model_writes_before_arguments_are_kept_once() -> None:
    call_format = FAMILIES["Mistral, ids"].format
    text = "".join(f"[TOOL_CALLS]get[CALL_ID]{each}[ARGS]{{}}" for each in ("abcdefgh1", "abcdefgh2", "abcdefgh2"))
    deltas = CallParser(TOOLS, call_format, "request").feed(text)
    ids = [each.id for each in deltas if not hasattr(each, "text") and each.id]
    assert ids[:2] == ["abcdefgh1", "abcdefgh2"]
    assert ids[2].startswith("call_")
