"""Commands without an answer yet, and what their answers mean."""

import asyncio
import copy
from collections.abc import Callable
from typing import Any

from paceline.errors import Aborted, OutOfRange, PacelineError, PositionMismatch, Unavailable
from paceline.rpc.status import error_of
from paceline.v1 import model_pb2, verify_pb2

# The kind of answer after which more follow.
PART = "prompt_logprobs"

OnPart = Callable[[verify_pb2.Logprobs], None]
# Gets the next answer to come, if the server goes on by itself.
OnMore = Callable[[asyncio.Future[Any]], None]


class CacheError(PacelineError):
    """The cache has another length than its owner assumed."""

    def __init__(self, cache_length: int, message: str) -> None:
        super().__init__(message)
        self.cache_length = cache_length


class ServerLost(Unavailable):
    """The server died or fell silent while it had a command."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        # The same for all commands that were lost together.
        self.loss = object()


class Pending:
    """Unanswered commands by id."""

    def __init__(self) -> None:
        # Where the answer goes, its kind, and what is called with parts that precede it, and with what follows; None if none may.
        self._waiting: dict[int, tuple[asyncio.Future[Any], str, OnPart | None, OnMore | None]] = {}

    def expect(
        self, command_id: int, kind: str, on_part: OnPart | None = None, on_more: OnMore | None = None,
        may_never_come: bool = False,
    ) -> asyncio.Future[Any]:  # fmt: skip
        """Returns what will hold the answer of this kind, or the server's error: CacheError if it reports the cache's length.

        may_never_come: once cancelled, nothing waits for it.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        # Until the answer, even if nobody waits any more: servers answer cancelled commands too.
        self._waiting[command_id] = future, kind, on_part, on_more
        if may_never_come:
            future.add_done_callback(lambda done: done.cancelled() and self._waiting.pop(command_id, None))
        return future

    def on_answer(self, answer: model_pb2.Answer) -> None:
        """Raises Unavailable for a protocol violation."""
        future, expected, on_part, on_more = self._waiting.get(answer.command_id, (None, "", None, None))
        if future is None:
            # A failed Truncate also fails its sequence's next command, and nobody may wait for what follows an answer.
            return
        if future.done():
            # Nobody waits any more.
            del self._waiting[answer.command_id]
            return
        kind = answer.WhichOneof("answer")
        if kind is None:
            raise Unavailable("the server sent an answer of unknown kind")
        if kind == PART and on_part is not None:
            on_part(answer.prompt_logprobs)
            return
        if kind not in (expected, "failure"):
            raise Unavailable(f"the server sent {kind!r} in answer to another command")
        del self._waiting[answer.command_id]
        if kind == "failure":
            future.set_exception(_error_of(answer.failure))
            return
        future.set_result(getattr(answer, kind))
        if answer.has_more:
            if on_more is None:
                raise Unavailable("the server went on with rounds that it was not to go on with")
            on_more(self.expect(answer.command_id, kind, on_more=on_more))

    def fail(self, error: Unavailable) -> None:
        for future, *_ in self._waiting.values():
            if not future.done():
                # Each has a traceback of its own.
                future.set_exception(copy.copy(error))
        self._waiting.clear()


def _error_of(failure: model_pb2.Failure) -> PacelineError:
    error = error_of(failure.status)
    if isinstance(error, PositionMismatch | OutOfRange | Aborted) and failure.HasField("cache_length"):
        return CacheError(failure.cache_length, str(error))
    return error
