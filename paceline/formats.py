"""What the output must look like: a JSON Schema, any JSON object, a regular expression, one of some texts, or a grammar."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.checks import require, require_at_most

# Characters of a schema, expression or grammar, or of all choices.
MAX_FORMAT_CHARACTERS = 1 << 18
MAX_CHOICES = 4096


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """Exactly one of the first five is set.

    `strict`: refuse keywords of a JSON Schema that can't be enforced. `fixed_whitespace`: JSON with one space after a comma
    or a colon and none elsewhere.
    """

    json_schema: str = ""
    json_object: bool = False
    regex: str = ""
    choice: tuple[str, ...] = ()
    grammar: str = ""
    strict: bool = field(default=False, kw_only=True)
    fixed_whitespace: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Raises InvalidArgument."""
        given = [name for name in KINDS if getattr(self, name)]
        require(len(given) == 1, "format", " and ".join(given) or "empty", f"one of {', '.join(KINDS)}")
        for name in ("json_schema", "regex", "grammar"):
            require_at_most(MAX_FORMAT_CHARACTERS, len(getattr(self, name)), name, "characters")
        require_at_most(MAX_CHOICES, len(self.choice), "choice", "texts")
        require_at_most(MAX_FORMAT_CHARACTERS, sum(map(len, self.choice)), "choice", "characters")
        require(all(self.choice), "choice", "an empty text", "texts of at least one character")
        require(len(set(self.choice)) == len(self.choice), "choice", "a text twice", "different texts")
        is_json = bool(self.json_schema) or self.json_object
        require(is_json or not self.fixed_whitespace, "fixed_whitespace", True, "left out without a JSON format")
        require(bool(self.json_schema) or not self.strict, "strict", True, "left out without a JSON Schema")

    @classmethod
    def of_schema(cls, schema: Mapping[str, Any] | bool | str, **more: bool) -> "OutputFormat":
        """Takes a JSON Schema as an object or as text. `more`: strict, fixed_whitespace."""
        return cls(schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False), **more)


KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")
