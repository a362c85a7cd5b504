"""Who may run: a fixed number of places, and a bounded queue in order of arrival."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator

from paceline.errors import ResourceExhausted

# Weight of the newest generation in how long a place is usually held.
SMOOTHING = 0.1
# Before the first has ended.
FIRST_HOLD_S = 1.0


class Admission:
    """Places for generations."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running = max_running
        self.running = 0
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._hold_s = FIRST_HOLD_S

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds a place, once there is one. Raises ResourceExhausted at once, with a hint, if the queue is full."""
        await self._enter()
        started_s = time.monotonic()
        try:
            yield
        finally:
            self._hold_s += SMOOTHING * (time.monotonic() - started_s - self._hold_s)
            self._leave()

    async def _enter(self) -> None:
        if self.running < self.max_running:
            self.running += 1
            return
        if len(self._waiting) >= self._max_waiting:
            # One place comes free every hold / max_running; the queue has room after the first.
            retry_after_s = max(0.1, self._hold_s / self.max_running)
            raise ResourceExhausted(
                f"{self.running} generations are running and {len(self._waiting)} waiting; "
                f"try again in about {retry_after_s:.1f} s",
                retry_after_s,
            )
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                # The place came just when nobody wanted it any more.
                self._leave()
            else:
                self._waiting.remove(turn)
            raise

    def _leave(self) -> None:
        """Hands the place to the next in line."""
        if self._waiting:
            self._waiting.popleft().set_result(None)
        else:
            self.running -= 1
