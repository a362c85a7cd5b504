"""Commands without an answer yet, and what their answers mean."""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.errors import Aborted, OutOfRange, PacelineError, PositionMismatch, Unavailable
from paceline.rpc.status import error_of
from paceline.v1 import draft_pb2, model_pb2, target_pb2

# The kind of answer after which more follow.
PART = "prompt_logprobs"

Answer = TypeVar("Answer", bound=target_pb2.Verdict | draft_pb2.Proposal)
OnPart = Callable[[target_pb2.Logprobs], None]


class CacheError(PacelineError):
    """The cache has another length than its owner assumed."""

    def __init__(self, cache_length: int, message: str) -> None:
        super().__init__(message)
        self.cache_length = cache_length


class Pending(Generic[Answer]):
    """Unanswered commands by id."""

    def __init__(self) -> None:
        # Where the answer goes, and what is called with parts that precede it; None if none may.
        self._waiting: dict[int, tuple[asyncio.Future[Answer], OnPart | None]] = {}

    def expect(self, command_id: int, on_part: OnPart | None) -> asyncio.Future[Answer]:
        """Returns what will hold the answer, or the server's error: CacheError if it reports the cache's length."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        # Until the answer, even if nobody waits any more: servers answer cancelled commands too.
        self._waiting[command_id] = future, on_part
        return future

    def on_answer(self, answer: target_pb2.TargetAnswer | draft_pb2.DraftAnswer) -> None:
        """Raises Unavailable for a protocol violation."""
        future, on_part = self._waiting.get(answer.command_id, (None, None))
        if future is None:
            # A failed Truncate also fails its sequence's next command.
            return
        if future.done():
            # Nobody waits any more.
            del self._waiting[answer.command_id]
            return
        kind = answer.WhichOneof("answer")
        if kind is None:
            raise Unavailable("the server sent an answer of unknown kind")
        if kind == "opened" or (kind == PART and on_part is None):
            raise Unavailable(f"the server sent {kind!r} in answer to another command")
        if kind == PART:
            assert on_part is not None
            on_part(getattr(answer, kind))
            return
        del self._waiting[answer.command_id]
        if kind == "failure":
            future.set_exception(_error_of(answer.failure))
        else:
            future.set_result(getattr(answer, kind))

    def fail(self, text: str) -> None:
        for future, _ in self._waiting.values():
            if not future.done():
                future.set_exception(Unavailable(text))
        self._waiting.clear()


def _error_of(failure: model_pb2.Failure) -> PacelineError:
    error = error_of(failure.status)
    if isinstance(error, PositionMismatch | OutOfRange | Aborted) and failure.HasField("cache_length"):
        return CacheError(failure.cache_length, str(error))
    return error
