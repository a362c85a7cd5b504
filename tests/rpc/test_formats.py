"""Output formats: what the Python client takes, sends and gives back."""

import json
from typing import Any

import pydantic
import pytest

from paceline import OutputFormat
from paceline.errors import InvalidArgument
from paceline.results import Chunk, Completion, Finish, Speculation, Timing
from paceline.rpc.generation_messages import chunk_from_message, encode_piece, make_request
from paceline.rpc.model_messages import format_from_message, format_to_message
from paceline.v1 import generation_pb2

SCHEMA = {"type": "object", "properties": {"née": {"type": "integer"}, "a": {"type": "string"}}}
FORMATS = [
    OutputFormat('{"type": "null"}', strict=True, fixed_whitespace=True),
    OutputFormat(json_object=True, fixed_whitespace=True),
    OutputFormat(regex="[0-9]+"),
    OutputFormat(choice=("yes", "no")),
    OutputFormat(grammar='start: "a"'),
]


class Person(pydantic.BaseModel):
    name: str
    age: int


def sent(given: Any) -> OutputFormat | None:
    request = make_request("x", None, None, False, format=given)
    return format_from_message(generation_pb2.GenerateRequest.FromString(request.SerializeToString()).format)


@pytest.mark.parametrize("given", FORMATS, ids=lambda each: format_to_message(each).WhichOneof("kind"))
def test_a_format_arrives_as_it_was_sent(given: OutputFormat) -> None:
    assert sent(given) == given


def test_without_a_format_none_is_sent() -> None:
    request = make_request("x", None, None, False)
    assert not request.HasField("format")
    assert format_from_message(request.format) is None


def test_options_without_a_kind_are_no_format() -> None:
    for options in ({"strict": True}, {"fixed_whitespace": True}):
        with pytest.raises(InvalidArgument, match="format is 'empty'; it must be one of json_schema, json_object"):
            format_from_message(generation_pb2.OutputFormat(**options))


def test_a_dict_is_a_schema_with_its_keys_in_order() -> None:
    assert sent(SCHEMA) == OutputFormat(json.dumps(SCHEMA, ensure_ascii=False))
    assert sent({}) == OutputFormat("{}")


def test_a_pydantic_class_gives_its_schema_and_reads_the_answer() -> None:
    found = sent(Person)
    assert found is not None
    assert json.loads(found.json_schema) == Person.model_json_schema()
    completion = Completion('{"name": "Ada", "age": 36}')
    assert completion.parsed(Person) == Person(name="Ada", age=36)
    assert completion.parsed() == {"name": "Ada", "age": 36}
    for model in (None, Person):
        with pytest.raises(ValueError):  # noqa: PT011 - pydantic's and json's own words
            Completion('{"name": "A').parsed(model)


KINDS = "an OutputFormat, a JSON Schema as a dict, or a pydantic model class"
BAD: dict[str, tuple[Any, str]] = {
    "a text": ("{}", f"format is '{{}}'; it must be {KINDS}"),
    "another class": (int, f"format is <class 'int'>; it must be {KINDS}"),
    "a list": ([], f"format is []; it must be {KINDS}"),
    "what JSON can't hold": ({"enum": {1}}, "json_schema can't be written as JSON: Object of type set"),
    "what is not a number": ({"minimum": float("nan")}, "json_schema can't be written as JSON: Out of range"),
    "half of a character": ({"const": "\ud83d"}, "it must be a text in UTF-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_format_is_refused_by_name(name: str) -> None:
    given, words = BAD[name]
    with pytest.raises(InvalidArgument) as caught:
        sent(given)
    assert words in str(caught.value)


BAD_VALUES: dict[str, tuple[dict[str, Any], str]] = {
    "two kinds": ({"regex": "a", "choice": ("a",)}, "format is 'regex and choice'"),
    "no kind": ({}, "format is 'empty'"),
    "a schema as a dict": ({"json_schema": SCHEMA}, "json_schema is {'type': 'object'"),
    "one text as a choice": ({"choice": "yes"}, "choice is 'yes'; it must be a list or tuple of texts"),
    "numbers to choose from": ({"choice": (1, 2)}, "choice is (1, 2); it must be a list or tuple of texts"),
    "half of a character": ({"choice": ("a", "\ud83d")}, "choice is 'a\\ud83d'; it must be a text in UTF-8"),
    "strict as a text": ({"json_schema": "{}", "strict": "yes"}, "strict is 'yes'; it must be True or False"),
    "strict without a schema": ({"json_object": True, "strict": True}, "strict is True; it must be left out"),
    "white space of a regex": ({"regex": "a", "fixed_whitespace": True}, "fixed_whitespace is True; it must be left out"),
    "a choice twice": ({"choice": ("a", "a")}, "choice is 'a text twice'"),
    "an empty choice": ({"choice": ("a", "")}, "choice is 'an empty text'"),
    "too many choices": ({"choice": tuple(map(str, range(4097)))}, "choice is '4097 texts'"),
    "a long expression": ({"regex": "a" * 262145}, "regex is '262145 characters'"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_VALUES)
def test_a_bad_value_is_refused_by_its_field(name: str) -> None:
    given, words = BAD_VALUES[name]
    with pytest.raises(InvalidArgument) as caught:
        OutputFormat(**given)
    assert words in str(caught.value)


def test_gbnf_becomes_lark_and_lark_stays() -> None:
    gbnf = 'root ::= "a" digits\ndigits ::= [0-9]+\n'
    assert OutputFormat.of_grammar(gbnf).grammar == '%llguidance {}\n\nstart: "a" DIGITS\nDIGITS: /[0-9]/+\n'
    for lark in ('start: "a"', 'start: name "::=" name\nname: /[a-z]+/', '%llguidance {}\nstart: "::="'):
        assert OutputFormat.of_grammar(lark).grammar == lark


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('root ::= "a', "is not GBNF: Unexpected end of input"),
        ('root ::= "\\', "is not GBNF: string index out of range"),
        ("root ::= " + "(" * 3000, "is not GBNF: maximum recursion depth"),
        ('a ::= "b"', "is not GBNF: No 'root' rule found"),
        ('root ::= "' + "a" * 16384, "is '16394 characters of GBNF'; it must be at most 16384"),
    ],
)
def test_bad_gbnf_is_refused(text: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^grammar ") as caught:
        OutputFormat.of_grammar(text)
    assert words in str(caught.value)


def test_forced_tokens_have_their_letter_and_their_count() -> None:
    figures = Speculation(2, 0, 0, [], [], 1.0, forced=3)
    finish = Finish("stop", 5, 0, 4, 7, figures, Timing(1, 2, 0, 1, 0, 0))
    data = encode_piece("id", 0, [1, 2], ["T", "F"], ["a", "b"], finish=finish)
    chunk = chunk_from_message(generation_pb2.GenerateResponse.FromString(data))
    assert chunk == Chunk("ab", [1, 2], "TF", [1, 1], finish=finish)


def test_reasoning_comes_apart_with_its_count() -> None:
    figures = Speculation(2, 0, 0, [], [], 1.0)
    finish = Finish("stop", 5, 0, 4, 7, figures, Timing(1, 2, 0, 1, 0, 0), reasoning_tokens=3)
    data = encode_piece("id", 0, [1, 2], ["T", "A"], ["", "b"], finish=finish, reasoning="Hm.")
    chunk = chunk_from_message(generation_pb2.GenerateResponse.FromString(data))
    assert chunk == Chunk("b", [1, 2], "TA", [0, 1], finish=finish, reasoning="Hm.")
