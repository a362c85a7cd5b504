"""Who may run: as many as there are places, and as the target's cache has room for; a bounded queue for the others.

More than the cache has room for would only evict one another, and read contexts again instead of going on.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

from paceline.errors import ResourceExhausted

# Weight of the newest generation in how long a place is usually held.
SMOOTHING = 0.1
# Before the first has ended.
FIRST_HOLD_S = 1.0


class Admission:
    """Places for generations, in order of arrival."""

    def __init__(self, max_running: int, max_waiting: int, cache_tokens: int) -> None:
        """`cache_tokens`: what the target's cache holds."""
        self.max_running = max_running
        self.running = 0
        self.max_waiting = max_waiting
        self._free_tokens = cache_tokens
        # Who waits, in order, and for how much of the cache.
        self._waiting: dict[asyncio.Future[None], int] = {}
        self._hold_s = FIRST_HOLD_S

    @contextlib.asynccontextmanager
    async def place(self, num_tokens: int) -> AsyncIterator[None]:
        """Holds a place, and room for `num_tokens`, once there is both.

        Raises ResourceExhausted at once, with a hint, if the queue is full.
        """
        await self._enter(num_tokens)
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._hold_s += SMOOTHING * (time.monotonic() - started_s - self._hold_s)
            self._leave(num_tokens)

    async def _enter(self, num_tokens: int) -> None:
        if not self._waiting and self._has_place(num_tokens):
            self._take(num_tokens)
            return
        if len(self._waiting) >= self.max_waiting:
            # One place comes free every hold / running; the queue has room after the first.
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
                self._call_next()
            else:
                # The place came just when nobody wanted it any more.
                self._leave(num_tokens)
            raise

    @property
    def waiting(self) -> int:
        """How many wait for a place."""
        return len(self._waiting)

    def _has_place(self, num_tokens: int) -> bool:
        """One that needs more than there is runs alone: the target says whether it can."""
        return self.running < self.max_running and (num_tokens <= self._free_tokens or self.running == 0)

    def _take(self, num_tokens: int) -> None:
        self.running += 1
        self._free_tokens -= num_tokens

    def _leave(self, num_tokens: int) -> None:
        self.running -= 1
        self._free_tokens += num_tokens
        self._call_next()

    def _call_next(self) -> None:
        """Hands places to those in front of the line."""
        while self._waiting:
            turn, num_tokens = next(iter(self._waiting.items()))
            # Cancelled in this turn of the event loop, its task has not run yet.
            gone = turn.cancelled()
            if not gone and not self._has_place(num_tokens):
                return
            del self._waiting[turn]
            if not gone:
                self._take(num_tokens)
                turn.set_result(None)
