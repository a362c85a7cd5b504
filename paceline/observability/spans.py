"""The interface of spans, with an implementation that records nothing; `otlp` has the one that exports.

Times are seconds of `time.perf_counter`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

Value = bool | int | float | str | Sequence[str]
Kind = Literal["server", "internal"]


class Span:
    """A part of a request's work in this service. This class records nothing."""

    # Makes other spans children of this one (W3C Trace Context); "" without a trace.
    traceparent = ""
    # If not, there is no need to compute attributes.
    is_kept = False

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds or replaces attributes."""

    def fail(self, code: str) -> None:
        """Marks the span as failed with a status code. Later calls have no effect."""

    def end(self, ended_s: float | None = None) -> None:
        """Ends the span, now by default."""


class Spans:
    """Creates the spans of a service. This class records nothing."""

    are_kept = False

    def start(self, name: str, parent: str = "", kind: Kind = "internal", started_s: float | None = None) -> Span:
        """Starts a span, now by default. An invalid or empty `parent` (a traceparent) starts a new trace."""
        return NO_SPAN


NO_SPAN = Span()
NO_SPANS = Spans()
