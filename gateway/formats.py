"""Parses the fields that say what the output must look like: OpenAI's, vLLM's and llama.cpp's."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from gateway.errors import FieldNames, bad_request, bad_value, from_paceline
from gateway.fields import (
    FORMATS,
    JSON_SCHEMA,
    RESPONSE_FORMAT,
    STRUCTURED_OUTPUTS,
    STRUCTURED_OUTPUTS_OPTION,
    STRUCTURED_OUTPUTS_REFUSED,
    check_keys,
    flag,
    get,
)
from paceline.errors import InvalidArgument
from paceline.formats import KINDS, OutputFormat


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


def parse_format(body: Mapping[str, Any]) -> NamedFormat:
    """Raises Fault."""
    options = get(body, "structured_outputs", dict, "an object", {})
    taken = (*STRUCTURED_OUTPUTS, STRUCTURED_OUTPUTS_OPTION)
    check_keys(options, taken, "structured_outputs", refused=STRUCTURED_OUTPUTS_REFUSED)
    # It may also go with a format from another field.
    is_compact = flag(options, STRUCTURED_OUTPUTS_OPTION, prefix="structured_outputs.")
    given = [
        *_response_format(body),
        *_fields("structured_outputs.", options, STRUCTURED_OUTPUTS),
        *_fields("", body, FORMATS),
    ]
    if len(given) > 1:
        both = " and ".join(each.field for each in given)
        raise bad_request(given[1].field, f"{both} are given; give one of them")
    if not given:
        if body.get("structured_outputs") is not None:
            known = ", ".join(STRUCTURED_OUTPUTS)
            raise bad_request("structured_outputs", f"structured_outputs has no format; it must have one of {known}")
        return NO_FORMAT
    names = {
        "strict": "response_format.json_schema.strict",
        "fixed_whitespace": f"structured_outputs.{STRUCTURED_OUTPUTS_OPTION}",
    }
    return _named(given[0], names, is_compact)


def schema_format(named: Mapping[str, Any], field: str) -> NamedFormat:
    """Returns the format of `schema` and `strict` in `named`, which the client calls `field`. Raises Fault."""
    strict = flag(named, "strict", prefix=f"{field}.")
    return _named(_Given(f"{field}.schema", "json_schema", named.get("schema"), strict), {"strict": f"{field}.strict"})


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


def _response_format(body: Mapping[str, Any]) -> Iterator[_Given]:
    asked = get(body, "response_format", dict, "an object", {"type": "text"})
    kind = asked.get("type")
    if not isinstance(kind, str) or kind not in RESPONSE_FORMAT:
        known = ", ".join(RESPONSE_FORMAT)
        raise bad_value("response_format.type", kind, f"one of {known}")
    check_keys(asked, RESPONSE_FORMAT[kind], "response_format")
    if kind == "json_object":
        yield _Given("response_format", "json_object", True)
    elif kind == "json_schema":
        named = asked.get("json_schema")
        if not isinstance(named, dict):
            raise bad_value("response_format.json_schema", named, "an object with name and schema")
        check_keys(named, JSON_SCHEMA, "response_format.json_schema")
        strict = flag(named, "strict", prefix="response_format.json_schema.")
        yield _Given("response_format.json_schema.schema", "json_schema", named.get("schema"), strict)


def _make(given: _Given) -> OutputFormat:
    """Raises Fault and InvalidArgument."""
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
