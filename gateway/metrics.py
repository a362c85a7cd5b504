"""The gateway's counts for Prometheus."""

from prometheus_client import Counter, Gauge, Histogram

from paceline.observability.exposition import LONG_S, SHORT_S, new_registry
from paceline.results import Finish


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
