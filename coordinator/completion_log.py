"""One line for each generation that is over, and for each request that was refused. Never a word of their texts."""

import asyncio
import logging

from coordinator.responses import Choice
from paceline.observability.logs import with_fields
from paceline.rpc.metadata import caller
from paceline.rpc.status import code_of

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
