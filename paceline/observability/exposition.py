"""Prometheus metrics over HTTP, on their own port."""

import contextlib
import logging
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    GCCollector,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.registry import Collector

import paceline
from paceline.errors import ConfigError

log = logging.getLogger(__name__)
# Histogram buckets in seconds.
SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LONG_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


def new_registry(service: str) -> CollectorRegistry:
    # Creation times would double the number of series.
    disable_created_metrics()
    registry = CollectorRegistry()
    for collector in (ProcessCollector, PlatformCollector, GCCollector):
        collector(registry=registry)
    build = Info("paceline_build", "Service and version.", registry=registry)
    build.info({"service": service, "version": paceline.__version__})
    return registry


@contextlib.contextmanager
def exposed(registry: Collector, listen: str | None, service: str) -> Iterator[None]:
    """Serves `GET /metrics` at HOST:PORT while the block runs. Raises ConfigError if the address can't be used."""
    if listen is None:
        yield
        return
    host, _, port = listen.rpartition(":")
    try:
        # Answers on its own threads, not on the event loop.
        server, thread = start_http_server(int(port), host.strip("[]"), registry)
    except OSError as error:
        raise ConfigError(f"--metrics: can't listen on {listen}: {error.strerror}") from error
    log.info("%s: metrics at http://%s:%d/metrics", service, host, server.server_port)
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
