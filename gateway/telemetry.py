"""The gateway's counts for Prometheus."""

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar

from prometheus_client import Counter, Gauge, Histogram
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline.errors import PacelineError
from paceline.observability.exposition import LONG_S, SHORT_S, new_registry
from paceline.observability.spans import NO_SPAN, Span, Spans
from paceline.results import Finish, Piece
from paceline.rpc.status import code_of


class GatewayMetrics:
    """One gateway's."""

    def __init__(self) -> None:
        registry = self.registry = new_registry("gateway")
        # As a coordinator has told it; "" before.
        self.target_name = ""

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_gateway_{name}", text, labels, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"paceline_gateway_{name}", text, registry=registry)

        def histogram(name: str, text: str, bounds: tuple[float, ...]) -> Histogram:
            return Histogram(f"paceline_gateway_{name}_seconds", text, buckets=bounds, registry=registry)

        self._requests = counter("requests", "HTTP requests by path and status.", "path", "status")
        self._open = gauge("open_requests", "HTTP requests that are open.")
        self._seconds = histogram("request", "HTTP requests, from the first byte to the last.", LONG_S)
        self._running = gauge("answers_running", "Answers of which a part is there.")
        self._waiting = gauge("answers_waiting", "Answers that wait for their first token.")
        self._continued = counter("continued_answers", "Answers that were asked for again behind what was delivered.")
        self._first_token = histogram("time_to_first_token", "From a request to its first token.", LONG_S)
        self._between = histogram("time_between_outputs", "Between two outputs, of one or more tokens.", SHORT_S)
        self._tokens = counter("generated_tokens", "Tokens given out.")
        self._generations = counter("generations", "Generations that came to their end, by its reason.", "reason")
        self._whole = histogram("generation", "Generations, as their coordinators saw them.", LONG_S)
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = counter("cached_prompt_tokens", "Tokens of prompts that a target's cache held.")
        self._rounds = counter("rounds", "Target forwards behind the prompts' own.")
        self._drafted_rounds = counter("drafted_rounds", "Target forwards over at least one draft.")
        self._drafts = counter("draft_tokens", "Tokens that were drafted.")
        self._accepted = counter("accepted_draft_tokens", "Drafts that were accepted.")
        self._accepted_at = counter(
            "accepted_draft_tokens_per_position", "Accepted drafts by position in the round.", "position"
        )

    def count_open(self, change: int) -> None:
        self._open.inc(change)

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """`path`: one of the application's, or "other": a client must not make up labels."""
        self._requests.labels(path, status).inc()
        self._seconds.observe(seconds)

    def count_waiting(self, change: int) -> None:
        self._waiting.inc(change)

    def count_running(self, change: int) -> None:
        self._running.inc(change)

    def count_continued(self) -> None:
        self._continued.inc()

    def count_first_token(self, waited_s: float) -> None:
        self._first_token.observe(waited_s)

    def count_gap(self, seconds: float) -> None:
        """Between two outputs of a generation."""
        self._between.observe(seconds)

    def count_tokens(self, num_tokens: int) -> None:
        self._tokens.inc(num_tokens)

    def count_finish(self, finish: Finish) -> None:
        """A generation's end, with what it tells of itself."""
        figures = finish.speculation
        self._generations.labels(finish.reason).inc()
        self._whole.observe(finish.timing.total_ms / 1e3)
        self._prompt_tokens.inc(finish.prompt_tokens)
        self._cached_tokens.inc(finish.cached_prompt_tokens)
        self._rounds.inc(figures.rounds)
        self._drafted_rounds.inc(figures.proposed_per_position[0] if figures.proposed_per_position else 0)
        self._drafts.inc(figures.proposed)
        self._accepted.inc(figures.accepted)
        for position, accepted in enumerate(figures.accepted_per_position):
            self._accepted_at.labels(position).inc(accepted)


# Ours and vLLM's, without the suffixes that their kind brings.
VLLM_NAMES = {
    "vllm:num_requests_running": "paceline_gateway_answers_running",
    "vllm:num_requests_waiting": "paceline_gateway_answers_waiting",
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
LABELS = {"reason": "finished_reason"}


class VllmNames(Collector):
    """The same numbers under vLLM's names, with vLLM's labels."""

    def __init__(self, metrics: GatewayMetrics, model_name: str | None) -> None:
        """`model_name`: as clients call the model; None: as its own name says, once a coordinator has told it."""
        self._metrics = metrics
        self._model_name = model_name

    def collect(self) -> Iterator[Metric]:
        common = {"engine": "0", "model_name": self._model_name or self._metrics.target_name}
        own = {metric.name: metric for metric in self._metrics.registry.collect()}
        for name, source in VLLM_NAMES.items():
            metric = own[source]
            alias = Metric(name, metric.documentation, metric.type)
            for sample in metric.samples:
                labels = {LABELS.get(key, key): value for key, value in sample.labels.items()}
                alias.samples.append(Sample(name + sample.name.removeprefix(source), common | labels, sample.value))
            yield alias


class GenerationTimer(contextlib.AbstractContextManager["GenerationTimer"]):
    """Counts an answer's pieces while it is made."""

    def __init__(self, metrics: GatewayMetrics) -> None:
        self._metrics = metrics
        self._started_s = time.perf_counter()
        # When each choice's last output came.
        self._last_s: dict[int, float] = {}

    def __enter__(self) -> "GenerationTimer":
        self._metrics.count_waiting(1)
        return self

    def __exit__(self, *exception: object) -> None:
        if self._last_s:
            self._metrics.count_running(-1)
        else:
            self._metrics.count_waiting(-1)

    def count(self, piece: Piece) -> None:
        metrics, now_s = self._metrics, time.perf_counter()
        if not self._last_s:
            metrics.count_waiting(-1)
            metrics.count_running(1)
            metrics.count_first_token(now_s - self._started_s)
        elif piece.index in self._last_s:
            metrics.count_gap(now_s - self._last_s[piece.index])
        self._last_s[piece.index] = now_s
        metrics.count_tokens(len(piece.token_ids))
        if piece.finish is not None:
            metrics.count_finish(piece.finish)


PATHS = ("/v1/chat/completions", "/v1/completions")
# Of the request that is served; tasks inherit it from the one that starts them.
current: ContextVar[Span] = ContextVar("current", default=NO_SPAN)


class RequestSpans:
    """In front of the application: begins and ends the spans. Pure ASGI."""

    def __init__(self, app: ASGIApp, spans: Spans) -> None:
        self._app = app
        self._spans = spans

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in PATHS:
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
            # In the midst of an answer, whose status says nothing of it.
            status = 500
            raise
        finally:
            # Named behind this: by `Guard`, and by the body.
            if name := scope.get("state", {}).get("request_id"):
                span.set({"paceline.request_id": name})
            if status:
                span.set({"http.response.status_code": status})
            if status >= 400:
                span.fail(str(status))
            span.end()


def record_failure(error: Exception) -> None:
    """The request's span fails, with gRPC's code: an answer's status can't say it once the answer has begun."""
    if isinstance(error, PacelineError):
        current.get().fail(code_of(error).name)
