"""A sequence's span, made when the sequence is over: a model server's part of a request's trace."""

from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.scheduling.sequence_state import Account
from paceline.observability.spans import Spans
from paceline.rpc.status import code_of


class SequenceSpans:
    """Makes them of accounts: one a sequence, on the device thread."""

    def __init__(self, spans: Spans, model: str) -> None:
        self._spans = spans
        self._model = model

    def settle(self, options: SequenceOptions, account: Account) -> None:
        """The span of a sequence that has just ended."""
        span = self._spans.start("sequence", options.traceparent, started_s=account.opened_s)
        if span.is_kept:
            span.set(
                {
                    "gen_ai.request.model": self._model,
                    "paceline.request_id": options.request_id,
                    "paceline.jobs": account.jobs,
                    "paceline.read_tokens": account.read_tokens,
                    "paceline.cached_tokens": account.cached_tokens,
                    "paceline.computed_ms": account.computed_us / 1e3,
                    "paceline.queued_ms": account.queued_us / 1e3,
                }
            )
        if account.failure is not None:
            span.fail(code_of(account.failure).name)
        span.end()
