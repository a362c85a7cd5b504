"""The interface of spans; `otlp` exports them. Times are seconds of `time.perf_counter`."""

import contextlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

from paceline.errors import ConfigError

log = logging.getLogger(__name__)

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


@contextlib.contextmanager
def traced(collector: str | None, service: str) -> Iterator[Spans]:
    """Yields a service's spans. `collector`: HOST:PORT or a URL; None records nothing.

    Raises ConfigError if OpenTelemetry is missing or misconfigured.
    """
    if collector is None:
        yield NO_SPANS
        return
    try:
        # Imported only on request: it takes time and memory.
        from paceline.observability.otlp import OtlpSpans
    except ImportError as error:
        raise ConfigError(f"--traces needs OpenTelemetry: pip install 'paceline[otel]' ({error})") from error
    url = collector if "://" in collector else f"http://{collector}"
    spans = OtlpSpans(url, service)
    log.info("%s: traces go to %s", service, url)
    try:
        yield spans
    finally:
        spans.close()
