"""The interface of spans; `otlp` exports them. Times are seconds of `time.perf_counter`."""

from collections.abc import Mapping, Sequence
from typing import Literal

Value = bool | int | float | str | Sequence[str]
Kind = Literal["server", "internal"]


class Span:
    """A part of a request's work. This class records nothing."""

    # Makes other spans children of this one (W3C Trace Context); "" without a trace.
    traceparent = ""
    # Lets callers skip computing attributes.
    is_kept = False

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds or replaces attributes."""

    def fail(self, code: str) -> None:
        """Marks the span as failed; the first code counts."""

    def end(self, ended_s: float | None = None) -> None: ...


class Spans:
    """Creates spans. This class records nothing."""

    are_kept = False

    def start(self, name: str, parent: str = "", kind: Kind = "internal", started_s: float | None = None) -> Span:
        """An invalid or empty `parent` (a traceparent) starts a new trace."""
        return NO_SPAN


NO_SPAN = Span()
NO_SPANS = Spans()
