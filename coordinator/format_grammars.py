"""Output formats as grammars: every kind becomes one text in llguidance's form, which all three services compile."""

import json
from typing import Any

from llguidance import LLMatcher

from coordinator.json_text import FIXED_WHITESPACE, FREE_WHITESPACE
from coordinator.schemas import enforceable
from paceline.errors import InvalidArgument
from paceline.grammar import Rules, grammar_text, written_rules
from paceline.output_format import OutputFormat


def make_grammar(wanted: OutputFormat, left_out: list[str] | None = None) -> str:
    """Returns a format's grammar as text. Raises as `make_rules`."""
    return grammar_text(make_rules(wanted, left_out))


def make_rules(wanted: OutputFormat, left_out: list[str] | None = None) -> Rules:
    """Raises InvalidArgument for a schema that can't be kept to; compiling finds everything else.

    `left_out` gets what of a JSON Schema is not enforced.
    """
    if wanted.json_object or wanted.json_schema:
        return {"json_schema": make_schema(wanted, left_out)}
    if wanted.regex:
        [rules] = json.loads(LLMatcher.grammar_from_regex(wanted.regex))["grammars"]
        return dict(rules)
    if wanted.choice:
        alternatives = " | ".join(json.dumps(text, ensure_ascii=False) for text in wanted.choice)
        # A terminal: of a rule, the library takes no more than 2,000 alternatives.
        return {"lark_grammar": f"start: CHOICE\nCHOICE: {alternatives}"}
    return written_rules(wanted.grammar)


def make_schema(wanted: OutputFormat, left_out: list[str] | None = None) -> dict[str, Any]:
    """Returns a JSON format's schema with options for the library, whatever a client has written there.

    Raises InvalidArgument. `left_out` gets what is not enforced.
    """
    schema = {"type": "object"} if wanted.json_object else _parse_schema(wanted.json_schema)
    schema, missing = enforceable(schema, strict=wanted.strict, field="json_schema")
    if left_out is not None:
        left_out += missing
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
