"""The coordinator's counts for Prometheus: requests, tokens, drafts, and where the time went.

A generation is counted when it is over, from the statistics that it has anyway. In its rounds only the time between two
outputs is noted: one observation a round, whatever the number of tokens.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from coordinator.admission import Admission
from coordinator.remote.link import Link
from coordinator.responses import Choice
from coordinator.unread import UnreadAnswers
from paceline.observability.exposition import LONG_S, SHORT_S
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
            self._drafts.labels(source).inc(proposed)
            self._accepted.labels(source).inc(accepted)
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
