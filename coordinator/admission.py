"""Admission control: limits running generations by slots and KV cache; the rest wait in a bounded queue.

Beyond the cache's capacity, generations would preempt one another instead of decoding.

The generations of a key wait in order of arrival. Between keys the queue is fair by start times (Goyal et al., "Start-time
Fair Queuing", 1996): each key has a virtual clock, which advances by the seconds that its generations hold slots, divided by
its weight; the key whose clock is furthest behind is next.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from paceline.errors import ResourceExhausted
from paceline.recent_mean import RecentMean
from paceline.shares import Shares, WeightOf, same_weight

# Weight of the newest generation in the average time a slot is held.
SMOOTHING = 0.1
# Assumed until the first generation ends.
FIRST_HOLD_S = 1.0


# A key's name; None for all callers without one.
Owner = str | None
# Becomes done when a waiting generation is admitted.
Turn = asyncio.Future[None]


@dataclass(slots=True)
class Line:
    """One key's generations."""

    owner: Owner
    # Those that wait in order of arrival, with the cache tokens each needs.
    waiting: dict[Turn, int] = field(default_factory=dict)
    num_running: int = 0
    # Its virtual clock, and when that was brought up to date.
    clock_s: float = 0.0
    updated_s: float = 0.0
    # How many generations had been admitted when its last one was.
    turn: int = 0

    def update(self, now_s: float, weight: float) -> tuple[float, float, int]:
        """Advances the clock. Returns what is least for the key that is next."""
        self.clock_s += (now_s - self.updated_s) * self.num_running / weight
        self.updated_s = now_s
        return self.clock_s, self.num_running / weight, self.turn


class Admission:
    def __init__(
        self, max_num_seqs: int, max_queue_size: int, has_room: Callable[[int], bool], weight_of: WeightOf = same_weight,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
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
        self._weight_of, self._clock = weight_of, clock
        # By API key. The key file limits their number.
        self._lines: dict[Owner, Line] = {}
        self._places = Shares(max_queue_size, weight_of)
        # Virtual time: the furthest clock of a key when a generation of its was admitted.
        self._virtual_s = 0.0
        self._num_admitted = 0
        self._hold_s = RecentMean(SMOOTHING, FIRST_HOLD_S, num_seen=1)

    @contextlib.asynccontextmanager
    async def slot(self, num_tokens: int, owner: Owner = None) -> AsyncIterator[None]:
        """Holds a slot. The caller must take the tokens (`Place`) before it awaits anything.

        Raises ResourceExhausted with a retry delay if the key's share of the queue is full.
        """
        line = self._lines.setdefault(owner, Line(owner))
        await self._acquire(num_tokens, line)
        started_s = self._clock()
        try:
            yield
        finally:
            self._hold_s.add(self._clock() - started_s)
            self._release(line)

    async def _acquire(self, num_tokens: int, line: Line) -> None:
        if not line.waiting:
            # What a key did not use while it was away is not saved.
            self._update(line)
            line.clock_s = max(line.clock_s, self._virtual_s)
        if not self.waiting and self._has_capacity(num_tokens):
            self._admit(line)
            return
        if not self._places.may_take(line.owner):
            # On average, a slot is released every hold / running seconds.
            retry_after_s = max(0.1, self._hold_s.value / max(1, self.running))
            of_key = "" if line.owner is None else f", {len(line.waiting)} of them for this key"
            raise ResourceExhausted(
                f"{self.running} generations are running and {self.waiting} waiting{of_key}; "
                f"try again in about {retry_after_s:.1f} s",
                retry_after_s,
            )
        turn: Turn = asyncio.get_running_loop().create_future()
        line.waiting[turn] = num_tokens
        self._places.take(line.owner)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._leave(line, turn)
                self.admit_waiting()
            else:
                # The slot was granted in the same iteration of the event loop.
                self._is_entering = False
                self._release(line)
            raise
        self._is_entering = False
        # The next one, after this one has taken its room.
        asyncio.get_running_loop().call_soon(self.admit_waiting)

    def admit_waiting(self) -> None:
        """Admits those for which there is capacity, in order."""
        while self.waiting:
            line = min((each for each in self._lines.values() if each.waiting), key=self._update)
            turn, num_tokens = next(iter(line.waiting.items()))
            # Cancelled in this iteration of the event loop; its task has not run yet.
            gone = turn.cancelled()
            if not gone and not self._has_capacity(num_tokens):
                return
            self._leave(line, turn)
            if not gone:
                self._admit(line)
                self._is_entering = True
                turn.set_result(None)

    @property
    def waiting(self) -> int:
        return self._places.num_taken

    def _leave(self, line: Line, turn: Turn) -> None:
        if line.waiting.pop(turn, None) is not None:
            self._places.give_back(line.owner)

    def _admit(self, line: Line) -> None:
        self._update(line)
        self._virtual_s = max(self._virtual_s, line.clock_s)
        self._num_admitted += 1
        line.turn = self._num_admitted
        line.num_running += 1
        self.running += 1

    def _update(self, line: Line) -> tuple[float, float, int]:
        return line.update(self._clock(), self._weight_of(line.owner))

    def _has_capacity(self, num_tokens: int) -> bool:
        return not self._is_entering and self.running < self.max_num_seqs and self._has_room(num_tokens)

    def _release(self, line: Line) -> None:
        self._update(line)
        line.num_running -= 1
        self.running -= 1
        self.admit_waiting()


class ActiveGenerations:
    """The running generations, which share forward passes. While the prompt of one is read, all others wait longer."""

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
