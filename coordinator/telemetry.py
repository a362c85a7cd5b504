"""Metrics, spans, and a log line per generation. They never contain prompts or output.

Spans: `generate` (the call) with `queue` (until admission), `prompt` (until the first token) and `decode`.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.admission import Admission
from coordinator.drafters.ahead_stats import AheadStats
from coordinator.generate_response import Choice
from coordinator.remote.pool import Pool
from coordinator.request import Request
from coordinator.unread import UnreadAnswers
from paceline.observability.exposition import LONG_S, SHORT_S
from paceline.observability.logs import with_fields
from paceline.observability.spans import Spans, Value
from paceline.rpc.metadata import caller
from paceline.rpc.status import code_of

log = logging.getLogger(__name__)
# Fields of `paceline.results.Timing`.
STAGES = ("draft", "target", "queued", "rpc")
Attributes = Mapping[str, Value]


class CoordinatorMetrics:
    """Counts a generation when it ends; rounds observe only the time between outputs."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(f"paceline_{name}_seconds", text, buckets=bounds, registry=registry)

        self._requests = counter("requests", "Requests by gRPC status code.", "code")
        self._generations = counter("generations", "Finished generations by finish reason.", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Prompt tokens.")
        self._cached_tokens = counter("cached_prompt_tokens", "Prompt tokens found in the target's cache.")
        self._tokens = counter("generated_tokens", "Generated tokens.")
        self._rounds = counter("rounds", "Speculative rounds: target forward passes after the prompt's.")
        self._round_tokens = counter("round_tokens", "Tokens emitted by these rounds.")
        self._drafts = counter("draft_tokens", "Draft tokens by drafter and draft model.", "source", "draft_model")
        self._accepted = counter(
            "accepted_draft_tokens", "Accepted draft tokens by drafter and draft model.", "source", "draft_model"
        )
        self._drafts_at = counter("draft_tokens_per_position", "Draft tokens by position in the round.", "position")
        self._accepted_at = counter(
            "accepted_draft_tokens_per_position", "Accepted draft tokens by position in the round.", "position"
        )
        self._stages = counter("stage_seconds", "Seconds spent in rounds by stage.", "stage")
        self._first_token = histogram("time_to_first_token", "Seconds from a request to its first token.", LONG_S)
        self._between = histogram("time_between_outputs", "Seconds between two outputs of one or more tokens.", SHORT_S)
        self._whole = histogram("generation", "Seconds from a request to the end of its generation.", LONG_S)
        self._queued = histogram("queue", "Seconds a request waits in the queue.", LONG_S)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request by status code."""
        code = "ok"
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            code = "cancelled"
            raise
        except Exception as error:
            code = code_of(error).name.lower()
            raise
        finally:
            self._requests.labels(code).inc()

    def count_unauthenticated(self) -> None:
        self._requests.labels("unauthenticated").inc()

    def observe_queue(self, waited_s: float) -> None:
        self._queued.observe(waited_s)

    def observe_gap(self, seconds: float) -> None:
        self._between.observe(seconds)

    def count_generation(self, choice: Choice) -> None:
        stats, finish = choice.stats, choice.finish()
        figures, timing = finish.speculation, finish.timing
        if finish.reason:
            self._generations.labels(finish.reason).inc()
            self._whole.observe(timing.total_ms / 1e3)
        if timing.ttft_ms == 0:
            return
        self._first_token.observe(timing.ttft_ms / 1e3)
        self._prompt_tokens.inc(finish.prompt_tokens)
        self._cached_tokens.inc(finish.cached_prompt_tokens)
        self._tokens.inc(finish.completion_tokens)
        self._rounds.inc(figures.rounds)
        self._round_tokens.inc(stats.round_tokens)
        for source, (proposed, accepted) in stats.by_source.items():
            self._drafts.labels(*source).inc(proposed)
            self._accepted.labels(*source).inc(accepted)
        for position, proposed in enumerate(figures.proposed_per_position):
            self._drafts_at.labels(position).inc(proposed)
            self._accepted_at.labels(position).inc(figures.accepted_per_position[position])
        for stage in STAGES:
            self._stages.labels(stage).inc(getattr(timing, f"{stage}_ms") / 1e3)


class CoordinatorState(Collector):
    """Gauges read at scrape time."""

    def __init__(
        self, admission: Admission, pools: Sequence[Pool], unread: UnreadAnswers, ahead_stats: AheadStats
    ) -> None:
        self._admission = admission
        self._pools = pools
        self._unread = unread
        self._ahead_stats = ahead_stats

    def collect(self) -> Iterator[Metric]:
        admission = self._admission
        yield GaugeMetricFamily("paceline_generations_running", "Running generations.", admission.running)
        yield GaugeMetricFamily("paceline_generations_waiting", "Waiting generations.", admission.waiting)
        most = GaugeMetricFamily("paceline_generations_limit", "Limit on generations by state.", labels=["state"])
        most.add_metric(["running"], admission.max_num_seqs)
        most.add_metric(["waiting"], admission.max_queue_size)
        yield most
        yield GaugeMetricFamily(
            "paceline_unsent_response_bytes", "Bytes of responses that clients have not read.", self._unread.num_bytes
        )
        ahead = CounterMetricFamily(
            "paceline_drafts_ahead", "Proposals drafted while the target verified, by outcome.", labels=["outcome"]
        )
        ahead.add_metric(["hit"], self._ahead_stats.num_hits)
        ahead.add_metric(["miss"], self._ahead_stats.num_misses)
        yield ahead
        up = GaugeMetricFamily(
            "paceline_server_up", "Whether a model server is connected and responding.", labels=["server", "address"]
        )
        connections = CounterMetricFamily(
            "paceline_server_connections",
            "Connections made to a model server; each after the first is a reconnect.",
            labels=["server", "address"],
        )
        placed = GaugeMetricFamily(
            "paceline_server_generations",
            "Generations placed at a model server.",
            labels=["server", "address"],
        )
        reserved = GaugeMetricFamily(
            "paceline_server_reserved_tokens",
            "Tokens that these generations may come to have.",
            labels=["server", "address"],
        )
        migrations = CounterMetricFamily(
            "paceline_migrations", "Migrations of generations to another server of the same kind.", labels=["server"]
        )
        for pool in self._pools:
            migrations.add_metric([pool.role], pool.num_migrations)
            for endpoint in pool.endpoints:
                labels = [pool.role, endpoint.link.address]
                up.add_metric(labels, float(endpoint.is_serving))
                connections.add_metric(labels, endpoint.link.epoch)
                placed.add_metric(labels, endpoint.num_placed)
                reserved.add_metric(labels, endpoint.num_reserved)
        yield from (up, connections, placed, reserved, migrations)


class RequestSpan(contextlib.AbstractContextManager["RequestSpan"]):
    def __init__(self, spans: Spans, parent: str, request_id: str) -> None:
        self._spans = spans
        self._span = spans.start("generate", parent, "server")
        self._span.set({"paceline.request_id": request_id, "paceline.caller": caller.get() or "-"})
        # Finished choices.
        self._choices: list[Choice] = []

    @property
    def traceparent(self) -> str:
        return self._span.traceparent

    def describe(self, request: Request, is_chat: bool, model: str) -> None:
        if self._span.is_kept:
            operation = "chat" if is_chat else "text_completion"
            self._span.set({"gen_ai.operation.name": operation, "gen_ai.request.model": model, **_asked(request)})

    def add(self, choice: Choice, error: BaseException | None) -> None:
        """Adds a finished generation's phases."""
        if not self._span.is_kept:
            return
        self._choices.append(choice)
        *done, last = _phases(choice, error)
        for phase in done:
            self._add_phase(*phase, None)
        self._add_phase(*last, error)

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> None:
        if self._choices:
            self._span.set(_outcome(sorted(self._choices, key=lambda choice: choice.index)))
        self._span.set({"rpc.response.status_code": "OK" if error is None else _code(error)})
        if isinstance(error, Exception):
            self._span.fail(_code(error))
        self._span.end()

    def _add_phase(
        self, name: str, started_s: float, ended_s: float, attributes: Attributes, error: BaseException | None
    ) -> None:
        span = self._spans.start(name, self._span.traceparent, started_s=started_s)
        span.set(attributes)
        if isinstance(error, Exception):
            span.fail(_code(error))
        span.end(ended_s)


def _phases(choice: Choice, error: BaseException | None) -> Iterator[tuple[str, float, float, Attributes]]:
    """Yields name, start, end and attributes of each phase reached."""
    stats, finish, now_s = choice.stats, choice.finish(), time.perf_counter()
    which = {"paceline.choice": choice.index}
    if stats.admitted_s is None:
        yield "queue", stats.arrived_s, now_s, which
        return
    yield "queue", stats.arrived_s, stats.admitted_s, which
    prompt = {
        **which,
        "paceline.prompt_tokens": finish.prompt_tokens,
        "paceline.cached_tokens": finish.cached_prompt_tokens,
    }
    if finish.timing.ttft_ms == 0:
        yield "prompt", stats.admitted_s, now_s, prompt
        return
    first_s = stats.arrived_s + finish.timing.ttft_ms / 1e3
    yield "prompt", stats.admitted_s, first_s, prompt
    # The first token may have been the last.
    if stats.rounds or error is not None:
        figures = finish.speculation
        yield (
            "decode",
            first_s,
            now_s,
            {
                **which,
                "paceline.rounds": figures.rounds,
                "paceline.round_tokens": stats.round_tokens,
                "paceline.proposed": figures.proposed,
                "paceline.accepted": figures.accepted,
                "paceline.acceptance_length": figures.mean_acceptance_length,
                "paceline.sources": stats.sources,
            },
        )


def _asked(request: Request) -> Attributes:
    sampling, speculation = request.sampling, request.speculation
    return {
        "gen_ai.provider.name": "paceline",
        "gen_ai.request.max_tokens": sampling.max_tokens,
        "gen_ai.request.temperature": sampling.temperature,
        "gen_ai.request.top_p": sampling.top_p,
        "gen_ai.request.top_k": sampling.top_k,
        "gen_ai.request.choice.count": sampling.n,
        "paceline.speculation": speculation.enabled,
        "paceline.drafter": speculation.drafter.value,
    }


def _outcome(choices: list[Choice]) -> Attributes:
    """Sums all choices, which share the prompt."""
    finishes = [choice.finish() for choice in choices]
    times = {
        f"paceline.{stage}_ms": sum(getattr(finish.timing, f"{stage}_ms") for finish in finishes) for stage in STAGES
    }
    return {
        "gen_ai.usage.input_tokens": finishes[0].prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": finishes[0].cached_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(finish.completion_tokens for finish in finishes),
        "gen_ai.response.finish_reasons": [finish.reason for finish in finishes if finish.reason],
        **times,
    }


def _code(error: BaseException) -> str:
    return code_of(error).name if isinstance(error, Exception) else "CANCELLED"


def log_refusal(error: Exception) -> None:
    """Logs only the code: the message may quote the request."""
    log.info("request refused", extra=with_fields(caller=caller.get() or "-", code=code_of(error).name.lower()))


def log_generation(choice: Choice, error: BaseException | None) -> None:
    finish = choice.finish()
    figures, timing = finish.speculation, finish.timing
    first_token = {"first_token_ms": int(timing.ttft_ms)} if timing.ttft_ms else {}
    fields = {
        "choice": choice.index,
        "caller": caller.get() or "-",
        "end": _end_of(finish.reason, error),
        "prompt_tokens": finish.prompt_tokens,
        "cached_tokens": finish.cached_prompt_tokens,
        "completion_tokens": finish.completion_tokens,
        "rounds": figures.rounds,
        "proposed": figures.proposed,
        "accepted": figures.accepted,
        "acceptance_length": round(figures.mean_acceptance_length, 2),
        "sources": ",".join(choice.stats.sources) or "none",
        **first_token,
        "total_ms": int(timing.total_ms),
        **{f"{stage}_ms": int(getattr(timing, f"{stage}_ms")) for stage in STAGES},
    }
    log.info("generation over", extra=with_fields(**fields))


def _end_of(reason: str, error: BaseException | None) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    if isinstance(error, Exception):
        return code_of(error).name.lower()
    return reason or "unknown"
