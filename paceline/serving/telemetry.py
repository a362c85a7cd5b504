"""Metrics and spans of a model server.

Steps are counted on the device thread; the rest is read at scrape time.
"""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.engine import Engine
from paceline.engine.scheduling.sequence_state import Usage
from paceline.observability.exposition import SHORT_S
from paceline.observability.spans import Spans
from paceline.rpc.status import code_of

# Upper bounds of rows and jobs in a step.
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class StepMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"paceline_engine_step_{name}", text, buckets=bounds, registry=registry)

        self._seconds = histogram("seconds", "Engine step duration in seconds.", SHORT_S)
        self._tokens = histogram("tokens", "Tokens per engine step.", COUNTS)
        self._batch_size = histogram("batch_size", "Jobs of a step, its batch size.", COUNTS)
        self._failed = Counter("paceline_engine_failed_jobs", "Jobs that failed in the engine.", registry=registry)

    def on_step(self, duration_s: float, num_jobs: int, num_rows: int, num_failed: int) -> None:
        self._seconds.observe(duration_s)
        self._tokens.observe(num_rows)
        self._batch_size.observe(num_jobs)
        if num_failed:
            self._failed.inc(num_failed)


class EngineState(Collector):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        yield from self._model()
        yield from self._cache()
        worker, counts = self._engine.worker, self._engine.worker.counts
        yield GaugeMetricFamily("paceline_sequences", "Open sequences.", worker.num_sequences)
        yield GaugeMetricFamily(
            "paceline_engine_step_running_seconds",
            "Seconds since the running step began; 0 between steps.",
            worker.step_s,
        )
        yield CounterMetricFamily(
            "paceline_integrity_checks", "Checks of the cache's bookkeeping that passed.", counts.integrity_checks
        )

    def _model(self) -> Iterator[Metric]:
        config = self._engine.config
        names = {
            "model": config.model, "dtype": config.dtype, "quantization": self._engine.quantization, "device": config.device
        }  # fmt: skip
        yield InfoMetricFamily("paceline_model", "The served model.", names)
        yield GaugeMetricFamily(
            "paceline_batch_invariant",
            "1 if results did not depend on the rest of the batch when the server started.",
            float(not self._engine.check.variant_parts),
        )

    def _cache(self) -> Iterator[Metric]:
        pool, counts = self._engine.pool, self._engine.worker.counts
        blocks = GaugeMetricFamily("paceline_kv_cache_blocks", "Blocks of the KV cache by state.", labels=["state"])
        num_idle, num_free = len(pool.prefixes.idle), pool.num_free
        blocks.add_metric(["free"], max(0, num_free - num_idle))
        blocks.add_metric(["cached"], num_idle)
        blocks.add_metric(["held"], pool.num_blocks - num_free)
        yield blocks
        yield GaugeMetricFamily(
            "paceline_kv_cache_used_ratio",
            "Fraction of the KV cache in use by sequences.",
            1 - num_free / pool.num_blocks,
        )
        yield GaugeMetricFamily("paceline_kv_cache_block_tokens", "Tokens per KV cache block.", pool.block_size)
        yield CounterMetricFamily(
            "paceline_prefix_cache_queried_tokens",
            "Tokens looked up in the prefix cache.",
            counts.queried_tokens,
        )
        yield CounterMetricFamily(
            "paceline_prefix_cache_hit_tokens",
            "Tokens found in the prefix cache.",
            counts.hit_tokens,
        )
        yield CounterMetricFamily(
            "paceline_preempted_sequences",
            "Sequences that lost their KV cache to older ones.",
            counts.preempted_sequences,
        )


class SequenceSpans:
    """Makes a span for each sequence that ends, on the device thread."""

    def __init__(self, spans: Spans, model: str) -> None:
        self._spans = spans
        self._model = model

    def on_close(self, options: SequenceOptions, usage: Usage) -> None:
        span = self._spans.start("sequence", options.traceparent, started_s=usage.opened_s)
        if span.is_kept:
            span.set(
                {
                    "gen_ai.request.model": self._model,
                    "paceline.request_id": options.request_id,
                    "paceline.jobs": usage.jobs,
                    "paceline.read_tokens": usage.read_tokens,
                    "paceline.cached_tokens": usage.cached_tokens,
                    "paceline.compute_ms": usage.compute_us / 1e3,
                    "paceline.queued_ms": usage.queued_us / 1e3,
                }
            )
        if usage.failure is not None:
            span.fail(code_of(usage.failure).name)
        span.end()
