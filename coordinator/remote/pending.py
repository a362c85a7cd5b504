"""Who waits for which answer of a server: by the command's id, which is echoed in it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.errors import Aborted, OutOfRange, PacelineError, PositionMismatch, Unavailable
from paceline.rpc.status import error_of

# The kind of answer that is only a part of one: more follow.
PART = "prompt_logprobs"


class CacheError(PacelineError):
    """A command failed because the cache is not as its owner believed: `cache_length` is the truth."""

    def __init__(self, cache_length: int, message: str) -> None:
        super().__init__(message)
        self.cache_length = cache_length


@dataclass(frozen=True, slots=True)
class Waiting:
    """Somebody who waits."""

    answer: asyncio.Future[Any]
    # Is given what comes ahead of the answer; None where nothing does.
    take_part: Callable[[Any], None] | None


class Pending:
    """The commands of one link that are not answered yet."""

    def __init__(self) -> None:
        self._waiting: dict[int, Waiting] = {}

    async def wait(self, command_id: int, take_part: Callable[[Any], None] | None) -> Any:
        """The answer. Raises what the server says, CacheError where that is about the cache's length."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[command_id] = Waiting(future, take_part)
        try:
            return await future
        finally:
            self._waiting.pop(command_id, None)

    def settle(self, answer: Any) -> None:
        """Takes an answer message. Raises Unavailable for one that no server should send."""
        waiting = self._waiting.get(answer.command_id)
        if waiting is None or waiting.answer.done():
            # A Truncate that failed says so by its sequence's next command as well.
            return
        kind = answer.WhichOneof("answer")
        if kind is None:
            raise Unavailable("the server sent an answer of unknown kind")
        if kind == "opened" or (kind == PART and waiting.take_part is None):
            raise Unavailable(f"the server sent {kind!r} in answer to another command")
        if kind == "failure":
            waiting.answer.set_exception(_error_of(answer.failure))
        elif kind == PART:
            assert waiting.take_part is not None
            waiting.take_part(getattr(answer, kind))
        else:
            waiting.answer.set_result(getattr(answer, kind))

    def fail(self, text: str) -> None:
        """Raises Unavailable in all who wait."""
        for waiting in self._waiting.values():
            if not waiting.answer.done():
                waiting.answer.set_exception(Unavailable(text))


def _error_of(failure: Any) -> PacelineError:
    error = error_of(failure.status)
    if isinstance(error, PositionMismatch | OutOfRange | Aborted) and failure.HasField("cache_length"):
        return CacheError(failure.cache_length, str(error))
    return error
