"""Bounds the memory of messages that clients have not read, per call and in total.

A generation does not wait for a slow client: its caches cost more than its messages. A call beyond the bound is cancelled.
Messages are buffered as encoded bytes, which take far less memory than objects.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from paceline.errors import ResourceExhausted

T = TypeVar("T")
# One call may hold 1 / CALL_FRACTION of the total.
CALL_FRACTION = 4
# Python's overhead per message.
OVERHEAD_BYTES = 128


class UnreadAnswers:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self.calls: set[UnreadAnswer[Any]] = set()

    @property
    def max_call_bytes(self) -> int:
        return self.max_bytes // CALL_FRACTION

    def check(self, answer: "UnreadAnswer[Any]") -> None:
        """Refuses the call with the largest buffer if the total exceeds its bound."""
        if answer.num_bytes > self.max_call_bytes:
            answer.refuse()
        elif self.num_bytes > self.max_bytes:
            max(self.calls, key=lambda each: each.num_bytes).refuse()


class UnreadAnswer(Generic[T]):
    """One call's queue of messages, for one reader."""

    def __init__(self, answers: UnreadAnswers, on_refused: Callable[[], object]) -> None:
        """`on_refused` ends the writers: `get` may not be called for long."""
        self._answers = answers
        self._on_refused = on_refused
        self._failure: ResourceExhausted | None = None
        # Not an `asyncio.Queue`: it takes several times as long, for every message.
        self._waiting: deque[tuple[T, bytes | None]] = deque()
        self._reader: asyncio.Future[None] | None = None
        self.num_bytes = 0
        answers.calls.add(self)

    def put(self, writer: T, message: bytes | None) -> None:
        """`message`: None when the writer is done. Does nothing after a refusal or `close`."""
        if self in self._answers.calls:
            self._waiting.append((writer, message))
            self._count(_buffered_bytes(message))
            self._answers.check(self)
            self._wake()

    async def get(self) -> tuple[T, bytes | None]:
        """Raises ResourceExhausted after a refusal."""
        while not self._waiting:
            if self._failure is not None:
                raise self._failure
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        part = self._waiting.popleft()
        self._count(-_buffered_bytes(part[1]))
        return part

    def refuse(self) -> None:
        self._failure = ResourceExhausted(
            f"{self.num_bytes} bytes of this answer were not read; at most {self._answers.max_call_bytes} are kept for a "
            f"call, and {self._answers.max_bytes} for all calls"
        )
        self.close()
        self._wake()
        self._on_refused()

    def close(self) -> None:
        self._waiting.clear()
        self._count(-self.num_bytes)
        self._answers.calls.discard(self)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._answers.num_bytes += num_bytes

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


def _buffered_bytes(message: bytes | None) -> int:
    return OVERHEAD_BYTES + len(message or b"")
