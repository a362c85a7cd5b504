"""Output formats as grammars: every kind becomes one text in llguidance's form, which all three services compile."""

import json
from typing import Any

from llguidance import LLMatcher

from paceline.errors import InvalidArgument
from paceline.formats import OutputFormat

# JSON's white space between tokens: free, but not without end, or one space behind commas and colons.
FREE_WHITESPACE: dict[str, Any] = {"whitespace_flexible": True, "whitespace_pattern": r"[ \t\n\r]{0,32}"}
FIXED_WHITESPACE: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def make_grammar(wanted: OutputFormat) -> str:
    """Raises InvalidArgument for text that is not JSON; compiling finds everything else."""
    if wanted.json_object or wanted.json_schema:
        return str(LLMatcher.grammar_from_json_schema(json.dumps(make_schema(wanted))))
    if wanted.regex:
        return str(LLMatcher.grammar_from_regex(wanted.regex))
    if wanted.choice:
        alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        return str(LLMatcher.grammar_from_lark(f"start: {alternatives}"))
    return str(LLMatcher.grammar_from_lark(wanted.grammar))


def make_schema(wanted: OutputFormat) -> dict[str, Any]:
    """Returns a JSON format's schema with options for the library, whatever a client has written there.

    Raises InvalidArgument.
    """
    schema = {"type": "object"} if wanted.json_object else _parse_schema(wanted.json_schema)
    whitespace = FIXED_WHITESPACE if wanted.fixed_whitespace else FREE_WHITESPACE
    return schema | {"x-guidance": whitespace | {"lenient": not wanted.strict, "coerce_one_of": not wanted.strict}}


def _parse_schema(text: str) -> dict[str, Any]:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("json_schema", f"is not JSON: {error}") from None
    if schema is True:
        return {}
    if not isinstance(schema, dict):
        raise InvalidArgument.of_value("json_schema", text, "an object, or true")
    return schema
