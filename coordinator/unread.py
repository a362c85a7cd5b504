"""Bounds the memory of messages that clients have not read, per call and in total.

A generation does not wait for a slow client: its caches cost more than its messages. A call beyond the bound is cancelled.
Messages are buffered as encoded bytes, which take far less memory than objects.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

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
        self._calls: set[UnreadAnswer[object]] = set()

    @property
    def max_call_bytes(self) -> int:
        return self.max_bytes // CALL_FRACTION

    def count(self, answer: "UnreadAnswer[object]", num_bytes: int) -> None:
        """Refuses the call with the largest buffer if the total exceeds its bound."""
        self.num_bytes += num_bytes
        if answer.num_bytes:
            self._calls.add(answer)
        else:
            self._calls.discard(answer)
        if answer.num_bytes > self.max_call_bytes:
            answer.refuse()
        elif self.num_bytes > self.max_bytes:
            max(self._calls, key=lambda each: each.num_bytes).refuse()


class UnreadAnswer(Generic[T]):
    """One call's queue of messages."""

    def __init__(self, answers: UnreadAnswers, on_refused: Callable[[], object]) -> None:
        """`on_refused` ends the writers: `get` may not be called for long."""
        self._answers = answers
        self._on_refused = on_refused
        self._failure: ResourceExhausted | None = None
        # None wakes the reader after a refusal.
        self._waiting: asyncio.Queue[tuple[T, bytes | None] | None] = asyncio.Queue()
        self.num_bytes = 0

    def put(self, writer: T, message: bytes | None) -> None:
        """`message`: None when the writer is done. Does nothing after a refusal."""
        if self._failure is None:
            self._waiting.put_nowait((writer, message))
            self._count(_buffered_bytes(message))

    async def get(self) -> tuple[T, bytes | None]:
        """Raises ResourceExhausted after a refusal."""
        part = await self._waiting.get()
        if part is None:
            assert self._failure is not None
            raise self._failure
        self._count(-_buffered_bytes(part[1]))
        return part

    def refuse(self) -> None:
        self._failure = ResourceExhausted(
            f"{self.num_bytes} bytes of this answer were not read; at most {self._answers.max_call_bytes} are kept for a "
            f"call, and {self._answers.max_bytes} for all calls"
        )
        self.close()
        self._waiting.put_nowait(None)
        self._on_refused()

    def close(self) -> None:
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._count(-self.num_bytes)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._answers.count(self, num_bytes)  # type: ignore[arg-type]


def _buffered_bytes(message: bytes | None) -> int:
    return OVERHEAD_BYTES + len(message or b"")
