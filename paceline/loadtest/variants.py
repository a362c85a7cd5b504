"""What is compared: ways to speculate, by the names a user types."""

from dataclasses import dataclass
from typing import Any

from paceline.errors import InvalidArgument
from paceline.speculation import MAX_DRAFT_TOKENS, Drafter, SpeculationParams, parse_draft_length

DEFAULT = "default"
OFF = "off"
_DRAFTERS = {drafter.value: drafter for drafter in Drafter}
_ALLOWED = (
    f"names from {DEFAULT}, {OFF}, {', '.join(_DRAFTERS)}, 0 to {MAX_DRAFT_TOKENS}, adaptive, entropy, "
    "or DRAFTER:LENGTH like model:4, separated by commas, none twice"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to speculate, and its name in every table and plot."""

    name: str
    # None: the server's own.
    speculation: SpeculationParams | None = None


def parse_variants(text: str) -> dict[str, dict[str, Any]]:
    """From `off,model,ngram:4,adaptive`: the SpeculationParams fields that each name says. Raises InvalidArgument.

    What a name leaves open is the server's own: `model` its number of draft tokens, `4` its drafter.
    """
    names = [name.strip() for name in text.split(",")]
    try:
        found = {name: _fields_of(name) for name in names}
    except InvalidArgument:
        raise InvalidArgument.of_value("--compare", text, _ALLOWED) from None
    if len(found) < len(names):
        raise InvalidArgument.of_value("--compare", text, _ALLOWED)
    return found


def _fields_of(name: str) -> dict[str, Any]:
    if name == DEFAULT:
        return {}
    if name == OFF:
        return {"enabled": False}
    drafter, colon, length = name.partition(":")
    if drafter not in _DRAFTERS:
        return {"enabled": True, "num_draft_tokens": parse_draft_length(name)}
    fields: dict[str, Any] = {"enabled": True, "drafter": _DRAFTERS[drafter]}
    return fields | ({"num_draft_tokens": parse_draft_length(length)} if colon else {})
