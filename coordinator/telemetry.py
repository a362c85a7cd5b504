"""What a coordinator tells of its work: Prometheus metrics, spans, and a log line for each generation. Never a word of a prompt
or an answer.

Everything is made of the statistics that a generation keeps anyway: no round costs more. A request's spans:

    generate            the call, with what was asked for and what came of it
      queue             until the generation has its place
      prompt            until its first token
      decode            until its end, with what speculation did
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
from coordinator.context import Request
from coordinator.remote.link import Link
from coordinator.responses import Choice
from coordinator.unread import UnreadAnswers
from paceline.observability.exposition import LONG_S, SHORT_S
from paceline.observability.logs import with_fields
from paceline.observability.spans import Spans, Value
from paceline.rpc.authentication import caller
from paceline.rpc.status import code_of


class CoordinatorMetrics:
    """One coordinator's."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"paceline_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(f"paceline_{name}_seconds", text, buckets=bounds, registry=registry)

        self._requests = counter("requests", "Requests by gRPC status code.", "code")
        self._generations = counter("generations", "Generations that came to their end, by its reason.", "reason")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self._cached_tokens = counter("cached_prompt_tokens", "Tokens of prompts that the target's cache held.")
        self._tokens = counter("generated_tokens", "Tokens of generations.")
        self._rounds = counter("rounds", "Target forwards behind the prompt's own.")
        self._round_tokens = counter("round_tokens", "Tokens that these rounds gave.")
        self._drafts = counter("draft_tokens", "Drafts by who proposed them.", "source")
        self._accepted = counter("accepted_draft_tokens", "Drafts that were accepted.", "source")
        self._drafts_at = counter("draft_tokens_per_position", "Drafts by position in the round.", "position")
        self._accepted_at = counter(
            "accepted_draft_tokens_per_position", "Accepted drafts by position in the round.", "position"
        )
        self._stages = counter("stage_seconds", "Time of rounds by stage.", "stage")
        self._first_token = histogram("time_to_first_token", "From a request to its first token.", LONG_S)
        self._between = histogram("time_between_outputs", "Between two outputs, of one or more tokens.", SHORT_S)
        self._whole = histogram("generation", "From a request to its end.", LONG_S)
        self._queued = histogram("queue", "From a request to its place among the running.", LONG_S)

    @contextlib.contextmanager
    def request(self) -> Iterator[None]:
        """Counts a request by how it ends."""
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
        """A call without a good key: it comes no further than that."""
        self._requests.labels("unauthenticated").inc()

    def count_place(self, waited_s: float) -> None:
        self._queued.observe(waited_s)

    def count_gap(self, seconds: float) -> None:
        """Between two outputs of a generation."""
        self._between.observe(seconds)

    def count_generation(self, choice: Choice) -> None:
        """One that is over, however it ended."""
        stats, context = choice.stats, choice.context
        if context.finish_reason is not None:
            self._generations.labels(context.finish_reason.value).inc()
            self._whole.observe(stats.total_us / 1e6)
        if stats.first_token_us == 0:
            return
        self._first_token.observe(stats.first_token_us / 1e6)
        self._prompt_tokens.inc(len(context.request.prompt))
        self._cached_tokens.inc(stats.cached_prompt_tokens)
        self._tokens.inc(context.num_generated)
        self._rounds.inc(stats.rounds)
        self._round_tokens.inc(stats.round_tokens)
        for source, (proposed, accepted) in stats.by_source.items():
            self._drafts.labels(source.value).inc(proposed)
            self._accepted.labels(source.value).inc(accepted)
        for position, proposed in enumerate(stats.proposed_per_position):
            self._drafts_at.labels(position).inc(proposed)
            self._accepted_at.labels(position).inc(stats.accepted_per_position[position])
        stages = {"draft": stats.draft_us, "target": stats.target_us, "queued": stats.queued_us, "wire": stats.wire_us}
        for stage, microseconds in stages.items():
            self._stages.labels(stage).inc(microseconds / 1e6)


class CoordinatorState(Collector):
    """What is asked for when somebody looks: who runs, who waits, what is not read, which server is there."""

    def __init__(self, admission: Admission, links: Sequence[Link], unread: UnreadAnswers) -> None:
        self._admission = admission
        self._links = links
        self._unread = unread

    def collect(self) -> Iterator[Metric]:
        admission = self._admission
        yield GaugeMetricFamily("paceline_generations_running", "Generations that run.", admission.running)
        yield GaugeMetricFamily("paceline_generations_waiting", "Generations that wait for a place.", admission.waiting)
        most = GaugeMetricFamily("paceline_generations_limit", "Most generations that may do so.", labels=["state"])
        most.add_metric(["running"], admission.max_running)
        most.add_metric(["waiting"], admission.max_waiting)
        yield most
        yield GaugeMetricFamily(
            "paceline_unread_answer_bytes", "Parts of answers that callers have not read.", self._unread.num_bytes
        )
        up = GaugeMetricFamily("paceline_server_up", "Whether a model server is there, and heard.", labels=["server"])
        connections = CounterMetricFamily(
            "paceline_server_connections",
            "Connections made to a model server: each after the first follows a loss.",
            labels=["server"],
        )
        for link in self._links:
            up.add_metric([link.kind.name], float(link.is_up and not link.is_silent))
            connections.add_metric([link.kind.name], link.epoch)
        yield up
        yield connections


Attributes = Mapping[str, Value]


class RequestSpan(contextlib.AbstractContextManager["RequestSpan"]):
    """The span of one call; it ends with the block."""

    def __init__(self, spans: Spans, parent: str, request_id: str) -> None:
        """`parent`: the caller's traceparent; "": the call begins a trace."""
        self._spans = spans
        self._span = spans.start("generate", parent, "server")
        self._span.set({"paceline.request_id": request_id, "paceline.caller": caller.get() or "-"})
        # Those that are over.
        self._choices: list[Choice] = []

    @property
    def traceparent(self) -> str:
        return self._span.traceparent

    def describe(self, request: Request, is_chat: bool, model: str) -> None:
        """What was asked for. `model`: the target's name."""
        if self._span.is_kept:
            operation = "chat" if is_chat else "text_completion"
            self._span.set({"gen_ai.operation.name": operation, "gen_ai.request.model": model, **_asked(request)})

    def add(self, choice: Choice, error: BaseException | None) -> None:
        """A generation that is over. `error`: what ended it early."""
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
    """Name, beginning, end and attributes of those that the generation came to."""
    stats, now_s = choice.stats, time.perf_counter()
    which = {"paceline.choice": choice.index}
    if stats.placed_s is None:
        yield "queue", stats.arrived_s, now_s, which
        return
    yield "queue", stats.arrived_s, stats.placed_s, which
    prompt = {
        **which,
        "paceline.prompt_tokens": len(choice.context.request.prompt),
        "paceline.cached_tokens": stats.cached_prompt_tokens,
    }
    if stats.first_token_us == 0:
        yield "prompt", stats.placed_s, now_s, prompt
        return
    first_s = stats.arrived_s + stats.first_token_us / 1e6
    yield "prompt", stats.placed_s, first_s, prompt
    # The first token may have been the last.
    if stats.rounds or error is not None:
        yield "decode", first_s, now_s, {**which, **_speculation(choice)}


def _speculation(choice: Choice) -> Attributes:
    stats = choice.stats
    return {
        "paceline.rounds": stats.rounds,
        "paceline.round_tokens": stats.round_tokens,
        "paceline.proposed": stats.proposed,
        "paceline.accepted": stats.accepted,
        "paceline.acceptance_length": stats.mean_acceptance_length,
        "paceline.sources": sorted(source.value for source in stats.by_source),
    }


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
    """Of all choices together; the prompt is theirs in common."""
    first, stats = choices[0], [choice.stats for choice in choices]
    reasons = [choice.context.finish_reason for choice in choices]
    return {
        "gen_ai.usage.input_tokens": len(first.context.request.prompt),
        "gen_ai.usage.cache_read.input_tokens": first.stats.cached_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(choice.context.num_generated for choice in choices),
        "gen_ai.response.finish_reasons": [reason.value for reason in reasons if reason is not None],
        "paceline.draft_ms": sum(each.draft_us for each in stats) / 1e3,
        "paceline.target_ms": sum(each.target_us for each in stats) / 1e3,
        "paceline.queued_ms": sum(each.queued_us for each in stats) / 1e3,
        "paceline.wire_ms": sum(each.wire_us for each in stats) / 1e3,
    }


def _code(error: BaseException) -> str:
    """gRPC's status. A call that its client gave up ends with none of our errors."""
    return code_of(error).name if isinstance(error, Exception) else "CANCELLED"


log = logging.getLogger(__name__)


def log_refusal(error: Exception) -> None:
    """A request that became no generation. What the error says may quote the request: only its code is told."""
    log.info("request refused", extra=with_fields(caller=caller.get() or "-", code=code_of(error).name.lower()))


def log_generation(choice: Choice, error: BaseException | None) -> None:
    """`error`: what ended it early."""
    context, stats = choice.context, choice.stats
    # Before the first token there is nothing to tell of it.
    first_token = {"first_token_ms": stats.first_token_us // 1000} if stats.first_token_us else {}
    fields = {
        "choice": choice.index,
        "caller": caller.get() or "-",
        "end": _end_of(choice, error),
        "prompt_tokens": len(context.request.prompt),
        "cached_tokens": stats.cached_prompt_tokens,
        "completion_tokens": context.num_generated,
        "rounds": stats.rounds,
        "proposed": stats.proposed,
        "accepted": stats.accepted,
        "acceptance_length": round(stats.mean_acceptance_length, 2),
        "sources": ",".join(sorted(stats.by_source)) or "none",
        **first_token,
        "total_ms": stats.total_us // 1000,
        "draft_ms": stats.draft_us // 1000,
        "target_ms": stats.target_us // 1000,
        "queued_ms": stats.queued_us // 1000,
        "wire_ms": stats.wire_us // 1000,
    }
    log.info("generation over", extra=with_fields(**fields))


def _end_of(choice: Choice, error: BaseException | None) -> str:
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    if isinstance(error, Exception):
        return code_of(error).name.lower()
    reason = choice.context.finish_reason
    return "unknown" if reason is None else reason.value
