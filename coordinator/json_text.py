"""JSON as text: its white space, and what a client's text says."""

import json
import re
from typing import Any

# Of a class of characters in a regular expression.
WHITESPACE = r" \t\n\r"
# Options of the grammar library. Free white space, but not without end; or what `json.dumps` writes, and with it chat
# templates: one space behind commas and colons.
FREE_WHITESPACE: dict[str, Any] = {"whitespace_flexible": True, "whitespace_pattern": f"[{WHITESPACE}]{{0,32}}"}
FIXED_WHITESPACE: dict[str, Any] = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def load_json(text: str) -> Any:
    """Returns None if it is not JSON, or JSON that UTF-8 can't hold."""
    try:
        loaded = json.loads(text, parse_constant=refuse_constant)
        # An escape may be a lone surrogate.
        if _SURROGATE.search(text):
            json.dumps(loaded, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return loaded


def refuse_constant(constant: str) -> None:
    """Python reads NaN and Infinity, which are not JSON."""
    raise ValueError(constant)
