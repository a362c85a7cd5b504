"""Where a generation's sequences are: at one member of a pool, and at another if that one fails.

A move needs nothing but the context: the next command opens the sequence there, and its tail is the whole context.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Generic, TypeVar

from coordinator.context import Request
from coordinator.remote.link import Command, DraftAnswer, DraftCommand, Link, TargetAnswer, TargetCommand
from coordinator.remote.pending import Answer
from coordinator.remote.pool import Member, Pool
from paceline.digests import block_digests
from paceline.errors import ResourceExhausted, Unavailable

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
# Minimum wait: a server that was away for long may be back.
LAST_ATTEMPT_S = 1.0
T = TypeVar("T")


class Place(Generic[Command, Answer]):
    def __init__(
        self,
        pool: Pool[Command, Answer],
        request: Request,
        tokens: Sequence[int],
        member: Member[Command, Answer] | None = None,
        model: str = "",
    ) -> None:
        """`tokens`: the context, which may grow. `member`: where to be, by default where it is likely to end soonest.

        `model`: name of the one that members must have, of which at least one has it; any if empty.
        """
        self._pool, self._asked_model, self._may_move = pool, model, member is None
        self._tokens, self._salt, self._num_new = tokens, request.cache_salt, request.max_new_tokens
        self._known_digests: list[bytes] = []
        self._num_reserved = pool.num_reserved_tokens(request)
        self._enter(member or self._choose() or next(each for each in pool.members if each.has(model)))
        # Into the tokens of this member, and of those to which it may move.
        self.translation = self.link.translation

    @property
    def is_serving(self) -> bool:
        # At the same address there may be another model by now.
        is_same = self._member.has(self._asked_model) and self.link.translation is self.translation
        return self._member.is_serving and is_same

    @property
    def model(self) -> str:
        """Returns the model's name; empty while it was never seen."""
        return self._member.model

    @property
    def num_others(self) -> int:
        """Returns how many other generations are at the same member."""
        return self._member.num_placed - 1

    def move(self, tried: Collection[Member[Command, Answer]] = ()) -> bool:
        """Goes to another member that serves and was not tried. Returns whether there is one.

        A place at a given member stays there.
        """
        if not self._may_move:
            return False
        others = {each for each in self._pool.members if each.link.translation is not self.translation}
        member = self._choose({self._member, *tried, *others})
        if member is None:
            return False
        self._leave()
        self._enter(member)
        self._pool.num_moves += 1
        return True

    async def retry(self, timeout_s: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt`, at other members too, while none is up or has capacity, for up to `timeout_s`.

        The time counts from when the last member went away, or queued requests would wait for it one after the other. Later
        callers get one attempt.
        """
        # None until it is needed: most rounds need none.
        deadline_s: float | None = None
        pause_s = FIRST_PAUSE_S
        tried: set[Member[Command, Answer]] = set()
        while True:
            if not self.link.is_up and not self.move():
                deadline_s = deadline_s or self._deadline_s(timeout_s)
                await self._pool.wait_up(max(LAST_ATTEMPT_S, deadline_s - time.monotonic()))
                if not self.link.is_up:
                    self.move()
            member = self._member
            try:
                return await attempt()
            except (Unavailable, ResourceExhausted):
                deadline_s = deadline_s or self._deadline_s(timeout_s)
                tried.add(member)
                # Another hypothesis of a beam search may have moved the place already.
                if self._member is not member or self.move(tried):
                    continue
                if time.monotonic() + pause_s > deadline_s:
                    raise
                tried.clear()
                await asyncio.sleep(pause_s)
                pause_s = min(MAX_PAUSE_S, pause_s * 2)

    def learn_cached(self, num_tokens: int) -> None:
        """Corrects what the member is believed to have cached of the context."""
        self._member.known.drop(self._digests[num_tokens // self._pool.num_block_tokens :])

    def release(self) -> None:
        """Leaves the member. What was fed there stays in its prefix cache."""
        if self.link.is_up and self.num_fed:
            self._member.known.add(self._digests[: self.num_fed // self._pool.num_block_tokens])
        self._leave()

    def _deadline_s(self, timeout_s: float) -> float:
        return time.monotonic() + timeout_s - self._pool.away_s

    @property
    def _digests(self) -> Sequence[bytes]:
        """Returns digests of the context's whole blocks; none if there is no choice or the block size is unknown."""
        num_block_tokens = self._pool.num_block_tokens
        if num_block_tokens > 1 and len(self._pool.members) > 1:
            new = block_digests(self._known_digests, self._tokens, self._salt, num_block_tokens)
            self._known_digests += list(new)
        return self._known_digests

    def _choose(self, without: Collection[Member[Command, Answer]] = ()) -> Member[Command, Answer] | None:
        return self._pool.choose(
            self._digests, len(self._tokens), self._num_new, self._num_reserved, without, self._asked_model
        )

    def _enter(self, member: Member[Command, Answer]) -> None:
        member.place(1, self._num_reserved)
        # An attribute for speed.
        self.link: Link[Command, Answer] = member.link
        self._member = member
        # Tokens of the context in the member's cache after its last answer.
        self.num_fed = 0

    def _leave(self) -> None:
        self._member.place(-1, -self._num_reserved)


TargetPlace = Place[TargetCommand, TargetAnswer]
DraftPlace = Place[DraftCommand, DraftAnswer]
