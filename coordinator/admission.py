"""Who may run: a fixed number of places, and a bounded queue in order of arrival."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from paceline.errors import ResourceExhausted


class Admission:
    """Places for generations."""

    def __init__(self, max_running: int, max_waiting: int) -> None:
        self.max_running = max_running
        self.running = 0
        self._max_waiting = max_waiting
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextlib.asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Holds a place, once there is one. Raises ResourceExhausted at once if the queue is full."""
        await self._enter()
        try:
            yield
        finally:
            self._leave()

    async def _enter(self) -> None:
        if self.running < self.max_running:
            self.running += 1
            return
        if len(self._waiting) >= self._max_waiting:
            raise ResourceExhausted(
                f"{self.running} generations are running and {len(self._waiting)} waiting; try again later"
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
