"""The JSON types that a tool's schema gives a parameter, and values that are spelled without them."""

import ast
import json
import warnings
from typing import Any

from coordinator.json_text import refuse_constant

Schema = dict[str, Any]
STRING = "string"
# Beside an object's properties.
_COMBINING = frozenset(("anyOf", "oneOf", "allOf", "not", "patternProperties", "minProperties", "maxProperties"))
_PYTHON_WORDS = ("True", "False", "None")
# References may form a circle.
_MAX_DEPTH = 16


def resolve(schema: Any, root: Schema) -> Schema:
    """Follows local references. A schema that is true, or that can't be found, allows anything."""
    for _ in range(_MAX_DEPTH):
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        found: Any = root
        for name in reference.removeprefix("#/").split("/"):
            found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        schema = found
    return {}


def properties_of(schema: Schema, root: Schema) -> dict[str, Any]:
    properties = resolve(schema, root).get("properties")
    return properties if isinstance(properties, dict) else {}


def types_of(schema: Any, root: Schema, depth: int = 0) -> frozenset[str]:
    """Returns the types that a value may have; none if the schema does not say."""
    schema = resolve(schema, root)
    if depth > _MAX_DEPTH:
        return frozenset()
    if "const" in schema:
        return frozenset((type_of(schema["const"]),))
    if isinstance(values := schema.get("enum"), list):
        return frozenset(map(type_of, values))
    kind = schema.get("type")
    if isinstance(kind, str):
        return frozenset((kind,))
    if isinstance(kind, list):
        return frozenset(each for each in kind if isinstance(each, str))
    for key in ("anyOf", "oneOf"):
        if isinstance(alternatives := schema.get(key), list):
            found = [types_of(each, root, depth + 1) for each in alternatives]
            return frozenset().union(*found) if all(found) else frozenset()
    return frozenset()


def unenforced_in(schema: Schema, keywords: frozenset[str]) -> list[str]:
    """Returns the places of an object's schema that only a JSON grammar could enforce.

    `keywords`: those that are not enforced in a parameter.
    """
    places = [f"/{key}" for key in schema if key in _COMBINING]
    for name, each in properties_of(schema, schema).items():
        places += (f"/properties/{name}/{key}" for key in resolve(each, schema) if key in keywords)
    return [f"{each}: in no form of calls but JSON" for each in places]


def type_of(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return STRING
        case list():
            return "array"
    return "object"


def as_json(text: str, types: frozenset[str]) -> str:
    """Converts a value that is written without quotes to JSON. `types`: those that the schema allows; empty: any.

    A value of another type becomes a string if the schema allows strings. Otherwise it stays as written, for the client's
    schema to refuse.
    """
    plain = text.strip()
    if types != {STRING} and (written := _parsed(plain)) is not None:
        kind = type_of(json.loads(written))
        if not types or kind in types or (kind == "integer" and "number" in types) or STRING not in types:
            return written
    return json.dumps(text, ensure_ascii=False)


def _parsed(text: str) -> str | None:
    """Returns the JSON that a text is or, as some templates write values, spells in Python; None if it is neither."""
    try:
        json.loads(text, parse_constant=refuse_constant)
        return text
    except (ValueError, RecursionError):
        pass
    if text not in _PYTHON_WORDS and text[:1] not in ("[", "{"):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            return json.dumps(ast.literal_eval(text), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None
