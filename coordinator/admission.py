"""Admission control: limits running generations by slots and KV cache; the rest wait in a bounded FIFO queue.

Beyond the cache's capacity, generations would evict one another instead of decoding.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable

from paceline.errors import ResourceExhausted

# Weight of the newest generation in the average time a slot is held.
SMOOTHING = 0.1
# Assumed until the first generation ends.
FIRST_HOLD_S = 1.0


class Admission:
    def __init__(self, max_num_seqs: int, max_queue_size: int, has_room: Callable[[int], bool]) -> None:
        """`has_room`: whether a target can take a generation of this many tokens (`Pool.has_room`).

        Call `admit_waiting` whenever a target may have gained room.
        """
        self.max_num_seqs = max_num_seqs
        self.running = 0
        self.max_queue_size = max_queue_size
        self._has_room = has_room
        # Whether an admitted generation has yet to take its room, which it does when its task runs: until then `has_room`
        # does not count it.
        self._is_entering = False
        # Waiting generations in order of arrival, with the cache tokens each needs.
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._hold_s = FIRST_HOLD_S

    @contextlib.asynccontextmanager
    async def slot(self, num_tokens: int) -> AsyncIterator[None]:
        """Holds a slot. The caller must take the tokens (`Place`) before it awaits anything.

        Raises ResourceExhausted with a retry delay if the queue is full.
        """
        await self._acquire(num_tokens)
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._hold_s += SMOOTHING * (time.monotonic() - started_s - self._hold_s)
            self._release()

    async def _acquire(self, num_tokens: int) -> None:
        if not self._waiting and self._has_capacity(num_tokens):
            self.running += 1
            return
        if len(self._waiting) >= self.max_queue_size:
            # On average, a slot is released every hold / running seconds.
            retry_after_s = max(0.1, self._hold_s / max(1, self.running))
            raise ResourceExhausted(
                f"{self.running} generations are running and {len(self._waiting)} waiting; "
                f"try again in about {retry_after_s:.1f} s",
                retry_after_s,
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting[turn] = num_tokens
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.pop(turn, None)
                self.admit_waiting()
            else:
                # The slot was granted in the same iteration of the event loop.
                self._is_entering = False
                self._release()
            raise
        self._is_entering = False
        # The next one, after this one has taken its room.
        asyncio.get_running_loop().call_soon(self.admit_waiting)

    def admit_waiting(self) -> None:
        """Admits those for which there is capacity, in order."""
        while self._waiting:
            turn, num_tokens = next(iter(self._waiting.items()))
            # Cancelled in this iteration of the event loop; its task has not run yet.
            gone = turn.cancelled()
            if not gone and not self._has_capacity(num_tokens):
                return
            del self._waiting[turn]
            if not gone:
                self.running += 1
                self._is_entering = True
                turn.set_result(None)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _has_capacity(self, num_tokens: int) -> bool:
        return not self._is_entering and self.running < self.max_num_seqs and self._has_room(num_tokens)

    def _release(self) -> None:
        self.running -= 1
        self.admit_waiting()


class ActiveGenerations:
    """The running generations, which share forwards. While the prompt of one is read, all others wait longer."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._running: set[object] = set()
        # Their number, at least 1, as who asks is active. An attribute for speed: read dozens of times in a round.
        self.size = 1
        # Generations whose prompt has not been read, and the time when a prompt was last read.
        self._reading: set[object] = set()
        self._read_s = -math.inf

    def join(self, generation: object) -> None:
        self._running.add(generation)
        self.size = len(self._running)
        self._reading.add(generation)

    def has_read(self, generation: object) -> None:
        """Notes that the generation's prompt has been read. Further calls change nothing."""
        if generation in self._reading:
            self._reading.remove(generation)
            self._read_s = self._clock()

    def leave(self, generation: object) -> None:
        self.has_read(generation)
        self._running.discard(generation)
        self.size = max(1, len(self._running))

    def was_reading_since(self, then_s: float) -> bool:
        """Returns whether any prompt was being read after `then_s`, in seconds of the clock."""
        return bool(self._reading) or self._read_s > then_s
