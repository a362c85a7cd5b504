"""Exports spans with OTLP over gRPC. Only this module imports OpenTelemetry.

A thread sends them from a bounded queue: a slow or missing collector loses spans but never delays a request.
OpenTelemetry's environment variables set sampler, headers and certificates.
"""

import logging
import threading
import time
from collections.abc import Mapping

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span as LibrarySpan
from opentelemetry.trace import SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

import paceline
from paceline.errors import ConfigError
from paceline.observability.spans import Kind, Span, Spans, Value

log = logging.getLogger(__name__)
# Time limit for sending the last spans at shutdown.
FLUSH_S = 1.5
# Time between log lines about failed exports.
QUIET_S = 60.0
_KINDS = {"server": SpanKind.SERVER, "internal": SpanKind.INTERNAL}
_TRACE_CONTEXT = TraceContextTextMapPropagator()


class OtlpSpan(Span):
    """A span that is exported if its trace is sampled."""

    def __init__(self, span: LibrarySpan) -> None:
        self._span = span
        self._has_failed = False
        self.is_kept = span.is_recording()
        carrier: dict[str, str] = {}
        _TRACE_CONTEXT.inject(carrier, set_span_in_context(span))
        self.traceparent = carrier.get("traceparent", "")

    def set(self, attributes: Mapping[str, Value]) -> None:
        self._span.set_attributes(dict(attributes))

    def fail(self, code: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._span.set_status(StatusCode.ERROR, code)
            self._span.set_attribute("error.type", code)

    def end(self, ended_s: float | None = None) -> None:
        self._span.end(_nanoseconds(ended_s))


class OtlpSpans(Spans):
    are_kept = True

    def __init__(self, url: str, service: str) -> None:
        """`url`: http(s)://HOST:PORT. Raises ConfigError if an OpenTelemetry variable is invalid."""
        _limit_rate()
        names = {"service.name": f"paceline-{service}", "service.version": paceline.__version__}
        try:
            # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these names.
            resource = Resource.create(names).merge(OTELResourceDetector().detect())
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            self._exporter = OTLPSpanExporter(endpoint=url)
            self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        except Exception as error:
            # Exceptions differ from variable to variable.
            raise ConfigError(f"--traces {url}: {error}") from error
        self._tracer = self._provider.get_tracer("paceline", paceline.__version__)

    def start(self, name: str, parent: str = "", kind: Kind = "internal", started_s: float | None = None) -> Span:
        context = _TRACE_CONTEXT.extract({"traceparent": parent})
        return OtlpSpan(self._tracer.start_span(name, context, kind=_KINDS[kind], start_time=_nanoseconds(started_s)))

    def close(self) -> None:
        """Sends the remaining spans for up to FLUSH_S."""
        # The library's own limit is 30 s per batch.
        flushing = threading.Thread(target=self._provider.shutdown, name="spans", daemon=True)
        flushing.start()
        flushing.join(FLUSH_S)
        if flushing.is_alive():
            # Cancel the attempt: a thread inside gRPC would disturb the interpreter's shutdown.
            self._exporter.shutdown()
            flushing.join(FLUSH_S / 10)


class RateLimitedHandler(logging.Handler):
    """Passes on one log line per QUIET_S; the library writes several for each failed batch."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + QUIET_S
            log.warning("traces: %s", record.getMessage())


def _limit_rate() -> None:
    library = logging.getLogger("opentelemetry")
    if library.propagate:
        library.propagate = False
        library.addHandler(RateLimitedHandler())


def _nanoseconds(moment_s: float | None) -> int | None:
    if moment_s is None:
        return None
    return time.time_ns() - int((time.perf_counter() - moment_s) * 1e9)
