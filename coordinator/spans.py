"""A request's span, and the children that its generations leave when they are over. Never a word of their texts.

    generate            the call, with what was asked for and what came of it
      queue             until the generation has its place
      prompt            until its first token
      decode            until its end, with what speculation did

They are made of the statistics that a generation keeps anyway: no round costs more.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

from coordinator.context import Request
from coordinator.responses import Choice
from paceline.observability.spans import Spans, Value
from paceline.rpc.metadata import caller
from paceline.rpc.status import code_of

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
