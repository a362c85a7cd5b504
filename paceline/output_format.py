"""What the output must look like: a JSON Schema, any JSON object, a regular expression, one of some texts, or a grammar."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.checks import require, require_at_most, require_type
from paceline.errors import InvalidArgument
from paceline.gbnf import plain_gbnf

# Characters of a schema, expression or grammar, or of all choices.
MAX_FORMAT_CHARACTERS = 1 << 18
MAX_CHOICES = 4096
# The converter takes a time that grows with the square of the rules: 0.7 s for the worst text of this length.
MAX_GBNF_CHARACTERS = 1 << 14
# Spaces of one line alone: from each of many empty lines a search would run over all that follow.
_LARK = re.compile(r"^[^\S\n]*(start[^\S\n]*:(?!:)|%llguidance\b)", re.MULTILINE)


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
        self._check_lengths()
        self._check_types()
        given = [name for name in KINDS if getattr(self, name)]
        require(len(given) == 1, "format", " and ".join(given) or "empty", f"one of {', '.join(KINDS)}")
        require_at_most(MAX_FORMAT_CHARACTERS, sum(map(len, self.choice)), "choice", "characters")
        require(all(self.choice), "choice", "an empty text", "texts of at least one character")
        require(len(set(self.choice)) == len(self.choice), "choice", "a text twice", "different texts")
        is_json = bool(self.json_schema) or self.json_object
        require(is_json or not self.fixed_whitespace, "fixed_whitespace", True, "left out without a JSON format")
        require(bool(self.json_schema) or not self.strict, "strict", True, "left out without a JSON Schema")

    @property
    def kind(self) -> str:
        return next(name for name in KINDS if getattr(self, name))

    @classmethod
    def of_schema(
        cls, schema: Mapping[str, Any] | str, *, strict: bool = False, fixed_whitespace: bool = False
    ) -> "OutputFormat":
        """Takes a JSON Schema as an object or as text. Raises InvalidArgument."""
        if not isinstance(schema, str):
            try:
                schema = json.dumps(schema, ensure_ascii=False, allow_nan=False)
            except (TypeError, ValueError, RecursionError) as error:
                raise InvalidArgument("json_schema", f"can't be written as JSON: {error}") from None
        return cls(schema, strict=strict, fixed_whitespace=fixed_whitespace)

    @classmethod
    def of_grammar(cls, text: str) -> "OutputFormat":
        """Takes llguidance's Lark, or llama.cpp's GBNF. Raises InvalidArgument."""
        require_at_most(MAX_FORMAT_CHARACTERS, len(text), "grammar", "characters")
        if "::=" not in text or _LARK.search(text):
            return cls(grammar=text)
        # Imported only here: it loads the whole of llguidance.
        from llguidance.gbnf_to_lark import gbnf_to_lark

        require_at_most(MAX_GBNF_CHARACTERS, len(text), "grammar", "characters of GBNF")
        try:
            text = plain_gbnf(text)
            require_at_most(MAX_GBNF_CHARACTERS, len(text), "grammar", "characters of GBNF, with escapes")
            lark = gbnf_to_lark(text)
        except InvalidArgument:
            raise
        except Exception as error:
            # Whatever a bad text leads to, an IndexError for example.
            raise InvalidArgument("grammar", f"is not GBNF: {error}") from None
        return cls(grammar=lark)

    def _check_lengths(self) -> None:
        """Before anything reads them. What has no length is of another type, which is another error."""
        for name in TEXTS:
            if isinstance(text := getattr(self, name), str):
                require_at_most(MAX_FORMAT_CHARACTERS, len(text), name, "characters")
        if isinstance(self.choice, tuple | list):
            require_at_most(MAX_CHOICES, len(self.choice), "choice", "texts")

    def _check_types(self) -> None:
        require_type(self, str, "a text", *TEXTS)
        require_type(self, bool, "True or False", "json_object", "strict", "fixed_whitespace")
        is_list = isinstance(self.choice, tuple | list) and all(isinstance(text, str) for text in self.choice)
        require(is_list, "choice", self.choice, "a list or tuple of texts")
        # A lone surrogate can't be encoded.
        for name, text in [*((name, getattr(self, name)) for name in TEXTS), ("choice", "".join(self.choice))]:
            require(text == text.encode(errors="ignore").decode(), name, text, "a text in UTF-8")


TEXTS = ("json_schema", "regex", "grammar")
KINDS = ("json_schema", "json_object", "regex", "choice", "grammar")
