"""Where a service's spans go: to the collector of `--traces`, or nowhere."""

import contextlib
import logging
from collections.abc import Iterator

from paceline.errors import ConfigError
from paceline.observability.spans import NO_SPANS, Spans

log = logging.getLogger(__name__)


@contextlib.contextmanager
def traced(collector: str | None, service: str) -> Iterator[Spans]:
    """The spans of a service while the block runs. `collector`: HOST:PORT, or a URL; None: nobody keeps them.

    Raises ConfigError where OpenTelemetry is missing, or is told what it can't do.
    """
    if collector is None:
        yield NO_SPANS
        return
    try:
        # It takes time and memory that only those pay who ask for traces.
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
