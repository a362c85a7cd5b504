"""Parses the fields that say what the output must look like: OpenAI's, vLLM's and llama.cpp's."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.errors import FieldNames, bad_request, bad_value, from_paceline
from gateway.fields import Fields, Values, flag, plain
from paceline.errors import InvalidArgument
from paceline.output_format import KINDS, OutputFormat

# Attributes of OutputFormat by field: of fields that are a format by themselves, and of keys in `structured_outputs`.
FORMATS = {
    "guided_json": "json_schema", "guided_regex": "regex", "guided_choice": "choice", "guided_grammar": "grammar",
    "json_schema": "json_schema", "grammar": "grammar",
}  # fmt: skip
STRUCTURED_OUTPUTS = {
    "json": "json_schema", "regex": "regex", "choice": "choice", "grammar": "grammar", "json_object": "json_object",
}  # fmt: skip
OPTION = "disable_any_whitespace"
STRUCTURED_OUTPUTS_FIELDS = Fields(
    # The option may also go with a format from another field.
    {**plain(*STRUCTURED_OUTPUTS), OPTION: flag("one space after commas and colons, and none elsewhere")},
    refused={"whitespace_pattern": (), "disable_additional_properties": (False,), "structural_tag": ()},
)
# `response_format` by its type. In llama.cpp an object may have a schema.
RESPONSE_FORMAT = {
    "text": Fields(plain("type")),
    "json_object": Fields(plain("type", "schema")),
    "json_schema": Fields(plain("type", "json_schema")),
}
STRICT = {"strict": flag("refuse what can't be enforced")}
JSON_SCHEMA = Fields({**plain("name", "schema"), **STRICT, **plain("description")})


class _Given(NamedTuple):
    # As the client calls it.
    field: str
    # As OutputFormat calls it.
    kind: str
    value: Any
    strict: bool = False


class NamedFormat(NamedTuple):
    """A format, and the client's names of its fields."""

    format: OutputFormat | None
    names: FieldNames


NO_FORMAT = NamedFormat(None, {})


def parse_format(values: Values) -> NamedFormat:
    """Raises HttpError."""
    options = STRUCTURED_OUTPUTS_FIELDS.read(values["structured_outputs"] or {}, "structured_outputs")
    given = [
        *_response_format({"type": "text"} if values["response_format"] is None else values["response_format"]),
        *_fields("structured_outputs.", options, STRUCTURED_OUTPUTS),
        *_fields("", values, FORMATS),
    ]
    if len(given) > 1:
        both = " and ".join(each.field for each in given)
        raise bad_request(given[1].field, f"{both} are given; give one of them")
    if not given:
        if values["structured_outputs"] is not None:
            known = ", ".join(STRUCTURED_OUTPUTS)
            raise bad_request("structured_outputs", f"structured_outputs has no format; it must have one of {known}")
        return NO_FORMAT
    names = {
        "strict": "response_format.json_schema.strict",
        "fixed_whitespace": f"structured_outputs.{OPTION}",
    }
    return _named(given[0], names, options[OPTION])


def schema_format(named: Values, field: str) -> NamedFormat:
    """Returns the format of `schema` and `strict` in `named`, which the client calls `field`. Raises HttpError."""
    return _named(_schema(named, field), {"strict": f"{field}.strict"})


def json_format(field: str) -> NamedFormat:
    """Returns the format of any JSON object, which the client calls `field`."""
    return _named(_Given(field, "json_object", True), {})


def _named(given: _Given, names: FieldNames, is_compact: bool = False) -> NamedFormat:
    names = {**dict.fromkeys(("format", *KINDS), given.field), **names}
    try:
        made = _make(given)
        return NamedFormat(replace(made, fixed_whitespace=True) if is_compact else made, names)
    except InvalidArgument as error:
        raise from_paceline(error, names) from None


def _fields(prefix: str, values: Mapping[str, Any], kinds: Mapping[str, str]) -> Iterator[_Given]:
    for name, kind in kinds.items():
        value = values.get(name)
        # Clients of llama.cpp send an empty grammar for none.
        if value is not None and (prefix + name, value) != ("grammar", ""):
            yield _Given(prefix + name, kind, value)


def _schema(named: Values, field: str) -> _Given:
    return _Given(f"{field}.schema", "json_schema", named["schema"], named.get("strict", False))


def _response_format(asked: Mapping[str, Any]) -> Iterator[_Given]:
    kind = asked.get("type")
    if not isinstance(kind, str) or kind not in RESPONSE_FORMAT:
        known = ", ".join(RESPONSE_FORMAT)
        raise bad_value("response_format.type", kind, f"one of {known}")
    RESPONSE_FORMAT[kind].check(asked, "response_format")
    if kind == "json_object" and asked.get("schema") is not None:
        yield _Given("response_format.schema", "json_schema", asked["schema"])
    elif kind == "json_object":
        yield _Given("response_format", "json_object", True)
    elif kind == "json_schema":
        named = asked.get("json_schema")
        if not isinstance(named, dict):
            raise bad_value("response_format.json_schema", named, "an object with name and schema")
        yield _schema(JSON_SCHEMA.read(named, "response_format.json_schema"), "response_format.json_schema")


def _make(given: _Given) -> OutputFormat:
    """Raises HttpError and InvalidArgument."""
    match given.kind, given.value:
        case "json_schema", dict() as schema:
            return OutputFormat.of_schema(schema, strict=given.strict)
        case "json_schema", str(text) if text:
            return OutputFormat.of_schema(text, strict=given.strict)
        case "json_object", True:
            return OutputFormat(json_object=True)
        case "choice", [_, *_] as texts:
            return OutputFormat(choice=tuple(texts))
        case "regex", str(text) if text:
            return OutputFormat(regex=text)
        case "grammar", str(text) if text:
            return OutputFormat.of_grammar(text)
    raise bad_value(given.field, given.value, _ALLOWED[given.kind])


_ALLOWED = {
    "json_schema": "a JSON Schema, as an object or a text",
    "json_object": "true",
    "choice": "a list of texts",
    "regex": "a text that is not empty",
    "grammar": "a text that is not empty",
}
