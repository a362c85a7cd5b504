import contextlib
import logging
from collections.abc import Iterator

from paceline.errors import ConfigError
from paceline.observability.spans import NO_SPANS, Spans

log = logging.getLogger(__name__)


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
