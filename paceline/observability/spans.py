"""Spans: what a request did in this service, and when. Those of all services that share a trace tell its whole way.

Services write to these classes, which keep nothing; `otlp` has those that are sent. Times are seconds of
`time.perf_counter`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

Value = bool | int | float | str | Sequence[str]
Kind = Literal["server", "internal"]


class Span:
    """A span that nobody keeps."""

    # By which others make their spans this one's children (W3C Trace Context); "" where there is no trace.
    traceparent = ""
    # Whether it will be sent: if not, nobody need work out its attributes.
    is_kept = False

    def set(self, attributes: Mapping[str, Value]) -> None:
        """Adds attributes, or replaces those of the same names."""

    def fail(self, code: str) -> None:
        """What it tells of has failed, with this status code. The first code stands."""

    def end(self, ended_s: float | None = None) -> None:
        """It is over, and changes no more; None: now."""


class Spans:
    """Where a service's spans begin. Here nobody keeps them."""

    are_kept = False

    def start(self, name: str, parent: str = "", kind: Kind = "internal", started_s: float | None = None) -> Span:
        """`parent`: a traceparent; what is none begins a trace. `started_s`: None: now."""
        return NO_SPAN


NO_SPAN = Span()
NO_SPANS = Spans()
