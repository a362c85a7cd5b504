"""Metrics, also under vLLM's names, and spans of HTTP requests."""

import contextlib
import time
from collections.abc import Collection, Iterator
from contextvars import ContextVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.observability.exposition import LONG_S, SHORT_S, new_registry
from paceline.observability.spans import NO_SPAN, Span, Spans
from paceline.results import Chunk, Finish, Model
from paceline.rpc.status import code_of

# vLLM's names, without suffixes, of our metrics: dashboards, autoscalers and benchmark tools read them.
VLLM_NAMES = {
    "vllm:num_requests_running": "paceline_gateway_requests_running",
    "vllm:num_requests_waiting": "paceline_gateway_requests_waiting",
    "vllm:kv_cache_usage_perc": "paceline_gateway_kv_cache_used_ratio",
    "vllm:cache_config": "paceline_gateway_kv_cache",
    "vllm:request_success": "paceline_gateway_generations",
    "vllm:prompt_tokens": "paceline_gateway_prompt_tokens",
    "vllm:generation_tokens": "paceline_gateway_generated_tokens",
    "vllm:prefix_cache_queries": "paceline_gateway_prompt_tokens",
    "vllm:prefix_cache_hits": "paceline_gateway_cached_prompt_tokens",
    "vllm:time_to_first_token_seconds": "paceline_gateway_time_to_first_token_seconds",
    "vllm:inter_token_latency_seconds": "paceline_gateway_time_between_outputs_seconds",
    "vllm:e2e_request_latency_seconds": "paceline_gateway_generation_seconds",
    "vllm:spec_decode_num_drafts": "paceline_gateway_drafted_rounds",
    "vllm:spec_decode_num_draft_tokens": "paceline_gateway_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens": "paceline_gateway_accepted_draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_per_pos": "paceline_gateway_accepted_draft_tokens_per_position",
}
# vLLM's labels by ours.
VLLM_LABELS = {"reason": "finished_reason"}


class GatewayMetrics:
    def __init__(self) -> None:
        registry = self.registry = new_registry("gateway")
        # Empty until a coordinator has answered.
        self.target_name = ""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_gateway_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"paceline_gateway_{name}", text, registry=registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"paceline_gateway_{name}_seconds", text, buckets=bounds, registry=registry)

        self._requests = counter("requests", "HTTP requests by path and status.", "path", "status")
        self._cache_used = gauge("kv_cache_used_ratio", "Fraction of the targets' KV cache blocks held by sequences.")
        # The labels' names are vLLM's.
        self._cache = Info("paceline_gateway_kv_cache", "Size of the targets' KV cache.", registry=registry)
        self._open = gauge("open_requests", "Open HTTP requests.")
        self._request_s = histogram("request", "Duration of HTTP requests.", LONG_S)
        self._running = gauge("requests_running", "Responses that have begun and are not finished.")
        self._waiting = gauge("requests_waiting", "Responses waiting for their first token.")
        self._resumed = counter("continued_answers", "Responses resumed after their coordinator went away.")
        self._fatal = counter("fatal_requests", "Requests refused because coordinators died while they worked on them.")
        self._first_token_s = histogram("time_to_first_token", "Time from a request to its first token.", LONG_S)
        self._between_s = histogram("time_between_outputs", "Time between outputs of one or more tokens.", SHORT_S)
        self._tokens = counter("generated_tokens", "Generated tokens.")
        self._generations = counter("generations", "Finished generations by finish reason.", "reason")
        self._generation_s = histogram("generation", "Duration of generations at their coordinator.", LONG_S)
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self._cached_tokens = counter("cached_prompt_tokens", "Prompt tokens found in a target's prefix cache.")
        self._rounds = counter("rounds", "Target forward passes after the prompt.")
        self._drafted_rounds = counter(
            "drafted_rounds", "Target forward passes that verified at least one draft token."
        )
        self._drafts = counter("draft_tokens", "Proposed draft tokens.")
        self._accepted = counter("accepted_draft_tokens", "Accepted draft tokens.")
        self._accepted_at = counter(
            "accepted_draft_tokens_per_position", "Accepted draft tokens by position in the round.", "position"
        )

    def on_target(self, target: Model) -> None:
        self.target_name = target.name
        self._cache_used.set(1 - target.free_blocks / target.total_blocks if target.total_blocks else 0)
        self._cache.info({"block_size": str(target.block_size), "num_gpu_blocks": str(target.total_blocks)})

    def count_open(self, change: int) -> None:
        self._open.inc(change)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """`path`: "other" if unknown, so that clients can't create labels."""
        self._requests.labels(path, status).inc()
        self._request_s.observe(seconds)

    def count_waiting(self, change: int) -> None:
        self._waiting.inc(change)

    def count_running(self, change: int) -> None:
        self._running.inc(change)

    def count_resumed(self) -> None:
        self._resumed.inc()

    def count_fatal(self) -> None:
        self._fatal.inc()

    def observe_first_token(self, waited_s: float) -> None:
        self._first_token_s.observe(waited_s)

    def observe_gap(self, seconds: float) -> None:
        self._between_s.observe(seconds)

    def count_tokens(self, num_tokens: int) -> None:
        self._tokens.inc(num_tokens)

    def count_finish(self, finish: Finish) -> None:
        figures = finish.speculation
        self._generations.labels(finish.reason).inc()
        self._generation_s.observe(finish.timing.total_ms / 1e3)
        self._prompt_tokens.inc(finish.prompt_tokens)
        self._cached_tokens.inc(finish.cached_prompt_tokens)
        self._rounds.inc(figures.rounds)
        self._drafted_rounds.inc(figures.proposed_per_position[0] if figures.proposed_per_position else 0)
        self._drafts.inc(figures.proposed)
        self._accepted.inc(figures.accepted)
        for position, accepted in enumerate(figures.accepted_per_position):
            self._accepted_at.labels(position).inc(accepted)


class GenerationTimer(contextlib.AbstractContextManager["GenerationTimer"]):
    """Times the first token and the gaps between outputs."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._started_s = time.perf_counter()
        # Time of each choice's last output.
        self._last_s: dict[int, float] = {}

    def __enter__(self) -> "GenerationTimer":
        self._metrics.count_waiting(1)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last_s:
            self._metrics.count_running(-1)
        else:
            self._metrics.count_waiting(-1)

    def on_chunk(self, chunk: Chunk) -> None:
        metrics, now_s = self._metrics, time.perf_counter()
        if not self._last_s:
            metrics.count_waiting(-1)
            metrics.count_running(1)
            metrics.observe_first_token(now_s - self._started_s)
        elif chunk.index in self._last_s:
            metrics.observe_gap(now_s - self._last_s[chunk.index])
        self._last_s[chunk.index] = now_s
        metrics.count_tokens(len(chunk.token_ids))
        if chunk.finish is not None:
            metrics.count_finish(chunk.finish)


class VllmNames(Collector):
    """The same metrics under vLLM's names."""

    def __init__(self, metrics: GatewayMetrics, model_name: str | None) -> None:
        self._metrics = metrics
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        common = {"engine": "0", "model_name": self._model_name or self._metrics.target_name}
        own = {metric.name: metric for metric in self._metrics.registry.collect()}
        for name, source in VLLM_NAMES.items():
            metric = own[source]
            alias = Metric(name, metric.documentation, metric.type)
            for sample in metric.samples:
                labels = {VLLM_LABELS.get(key, key): value for key, value in sample.labels.items()}
                alias.samples.append(Sample(name + sample.name.removeprefix(source), common | labels, sample.value))
            yield alias


def exposition(metrics: GatewayMetrics, model_name: str | None) -> CollectorRegistry:
    """Returns the registry for /metrics."""
    registry = CollectorRegistry()
    registry.register(metrics.registry)
    registry.register(VllmNames(metrics, model_name))
    return registry


# The current request's span; tasks inherit it.
current: ContextVar[Span] = ContextVar("current", default=NO_SPAN)


class RequestSpans:
    """Records a span per request that generates, as a child of its `traceparent`."""

    def __init__(self, app: ASGIApp, spans: Spans, paths: Collection[str]) -> None:
        self._app = app
        self._spans = spans
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in self._paths:
            await self._app(scope, receive, send)
            return
        path, status = scope["path"], 0

        async def send_noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        span = self._spans.start(f"POST {path}", Headers(scope=scope).get("traceparent", ""), "server")
        span.set({"http.request.method": "POST", "http.route": path, "url.path": path, "url.scheme": scope["scheme"]})
        current.set(span)
        try:
            await self._app(scope, receive, send_noted)
        except Exception:
            # The response may have begun with another status.
            status = 500
            raise
        finally:
            # `AdmissionMiddleware` sets it, and a request's body may replace it.
            if name := scope.get("state", {}).get("request_id"):
                span.set({"paceline.request_id": name})
            if status:
                span.set({"http.response.status_code": status})
            if status >= 400:
                span.fail(str(status))
            span.end()


def record_failure(error: Exception) -> None:
    """Marks the span as failed: a response that has begun keeps its HTTP status."""
    if isinstance(error, PacelineError):
        current.get().fail(code_of(error).name)
