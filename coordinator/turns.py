"""Who goes next, where only so many may run at a time."""

import asyncio
import contextlib
import heapq
from collections import OrderedDict, deque
from collections.abc import AsyncIterator


class EarliestDeadlineFirst:
    """A lock for those with the earliest deadline. Who gives up while waiting takes no turn."""

    def __init__(self) -> None:
        self._is_taken = False
        # Deadline, and the order of arrival.
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._num_arrived = 0

    @contextlib.asynccontextmanager
    async def turn(self, deadline: float) -> AsyncIterator[None]:
        if self._is_taken:
            self._num_arrived += 1
            mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (deadline, self._num_arrived, mine))
            try:
                await mine
            except asyncio.CancelledError:
                # The turn may have come in the same moment.
                if not mine.cancelled():
                    self._pass_on()
                raise
        self._is_taken = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, following = heapq.heappop(self._waiting)
            if not following.done():
                following.set_result(None)
                return
        self._is_taken = False


class RoundRobin:
    """Lets so many run at once. Those that wait take turns by owner, so that one with many delays no other for long."""

    def __init__(self, count: int) -> None:
        self._num_free = count
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()

    @contextlib.asynccontextmanager
    async def of(self, owner: str) -> AsyncIterator[None]:
        if self._num_free:
            self._num_free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(owner, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if not turn.cancelled():
                    self._pass_on()
                raise
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        while self._waiting:
            owner, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[owner] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._num_free += 1
