"""The trace of a call, in its metadata `traceparent` (W3C Trace Context): how clients say it, how a server reads it."""

import re
from collections.abc import Iterable

from paceline.checks import require

METADATA_KEY = "traceparent"
_TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


def trace_metadata(traceparent: str) -> tuple[str, str]:
    """Raises InvalidArgument for what is no traceparent."""
    is_one = _TRACEPARENT.fullmatch(traceparent) is not None
    require(is_one, METADATA_KEY, traceparent, "VERSION-TRACE-PARENT-FLAGS, as in W3C Trace Context")
    return METADATA_KEY, traceparent


def traceparent_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """What the caller says; "" if nothing, or not one thing."""
    values = [value for name, value in metadata or () if name == METADATA_KEY]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""
