"""Answers that callers have not read yet: bounded, for each call and in all.

A generation goes on however slowly its caller reads, since its caches are worth more than its messages. So messages pile up
where a caller does not read. Whose pile grows too high loses its generations; nobody beside it is held up.

Messages wait as the bytes that will be sent: as objects they take four to eighteen times the memory.
"""

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.errors import ResourceExhausted

T = TypeVar("T")
# Of what all calls may hold, the part that one may.
CALL_SHARE = 4
# What Python needs to keep a message, beside its bytes. A short one is mostly this.
KEEPING_BYTES = 128


class UnreadAnswers:
    """Those of all calls."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        self._calls: set[UnreadAnswer[object]] = set()

    @property
    def max_call_bytes(self) -> int:
        return self.max_bytes // CALL_SHARE

    def count(self, answer: "UnreadAnswer[object]", num_bytes: int) -> None:
        """Counts what came or went (below 0). Too much in all costs the call that has most of it."""
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
    """One call's messages, in order, on the way from those who write them to the one who sends them."""

    def __init__(self, answers: UnreadAnswers, on_refused: Callable[[], object]) -> None:
        """`on_refused` ends what writes the answer: its caller may not read for long what `get` raises."""
        self._answers = answers
        self._on_refused = on_refused
        self._failure: ResourceExhausted | None = None
        # None wakes a reader whose answer was refused.
        self._waiting: asyncio.Queue[tuple[T, bytes | None] | None] = asyncio.Queue()
        self.num_bytes = 0

    def put(self, writer: T, message: bytes | None) -> None:
        """`message`: None when the writer is done. Never waits. Nothing is added to an answer that was refused."""
        if self._failure is None:
            self._waiting.put_nowait((writer, message))
            self._count(_kept_bytes(message))

    async def get(self) -> tuple[T, bytes | None]:
        """The next message, and whose it is. Raises ResourceExhausted if the caller left too much unread."""
        part = await self._waiting.get()
        if part is None:
            assert self._failure is not None
            raise self._failure
        self._count(-_kept_bytes(part[1]))
        return part

    def refuse(self) -> None:
        """Forgets what was not read, and ends the answer."""
        self._failure = ResourceExhausted(
            f"{self.num_bytes} bytes of this answer were not read; at most {self._answers.max_call_bytes} are kept for a "
            f"call, and {self._answers.max_bytes} for all calls"
        )
        self.close()
        self._waiting.put_nowait(None)
        self._on_refused()

    def close(self) -> None:
        """Forgets what was not read."""
        while not self._waiting.empty():
            self._waiting.get_nowait()
        self._count(-self.num_bytes)

    def _count(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        self._answers.count(self, num_bytes)  # type: ignore[arg-type]  # whoever its writers are


def _kept_bytes(message: bytes | None) -> int:
    return KEEPING_BYTES + len(message or b"")
