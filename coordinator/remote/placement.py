"""Where a generation's sequences are: at one endpoint of a pool, and at another if that one fails.

A migration needs nothing but the context: the next command opens the sequence there, and its tail is the whole context.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from coordinator.remote.link import Link
from coordinator.remote.pending import ServerLost
from coordinator.remote.pool import Endpoint, Pool
from coordinator.request import Request, may_use_head
from paceline.backoff import Backoff
from paceline.digests import block_digests, salt_of_head
from paceline.errors import ResourceExhausted, Unavailable
from paceline.suspicion import Suspicion

FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
# Minimum wait: a server that was away for long may be back.
LAST_ATTEMPT_S = 1.0
T = TypeVar("T")


class Placement:
    def __init__(
        self,
        pool: Pool,
        request: Request,
        tokens: Sequence[int],
        endpoint: Endpoint | None = None,
        model: str = "",
    ) -> None:
        """`tokens`: the context, which may grow. `endpoint`: where to be, by default where it is likely to end soonest.

        `model`: name of the one that endpoints must have, of which at least one has it; any if empty.
        """
        self._pool, self._asked_model, self._may_migrate = pool, model, endpoint is None
        self._tokens, self._num_new = tokens, request.max_new_tokens
        uses_head = pool.draft_head_times is not None and may_use_head(request)
        self._salt = salt_of_head(request.cache_salt) if uses_head else request.cache_salt
        self._known_digests: list[bytes] = []
        self.suspicion = Suspicion(f"{pool.role} server", pool.trials, request.fate)
        # The last one that the generation was open at.
        self._loss: object = None
        self._num_reserved = pool.num_reserved_tokens(request)
        self._enter(endpoint or self._choose() or next(each for each in pool.endpoints if each.has(model)))
        # Into the tokens of this endpoint, and of those to which it may migrate.
        self.translation = self.link.translation

    @property
    def is_serving(self) -> bool:
        # At the same address there may be another model by now.
        is_same = self._endpoint.has(self._asked_model) and self.link.translation is self.translation
        return self._endpoint.is_serving and is_same

    @property
    def model(self) -> str:
        """Returns the model's name; empty while it was never seen."""
        return self._endpoint.model

    @property
    def num_others(self) -> int:
        """Returns how many other generations are at the same endpoint."""
        return self._endpoint.num_placed - 1

    def migrate(self, tried: Collection[Endpoint] = ()) -> bool:
        """Goes to another endpoint that serves and was not tried. Returns whether there is one.

        A placement at a given endpoint stays there.
        """
        if not self._may_migrate:
            return False
        others = {each for each in self._pool.endpoints if each.link.translation is not self.translation}
        endpoint = self._choose({self._endpoint, *tried, *others})
        if endpoint is None:
            return False
        self._leave()
        self._enter(endpoint)
        self._pool.num_migrations += 1
        return True

    async def retry(self, timeout_s: float, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeats `attempt`, at other endpoints too, while none is up or has capacity, for up to `timeout_s`.

        The time counts from when the last endpoint went away, or queued requests would wait for it one after the other. Later
        callers get one attempt. Raises FatalRequest if endpoints die of it.
        """
        # None until it is needed: most rounds need none.
        deadline_s: float | None = None
        backoff = Backoff(FIRST_PAUSE_S, MAX_PAUSE_S)
        tried: set[Endpoint] = set()
        while True:
            if not self.link.is_up and not self.migrate():
                deadline_s = deadline_s or self._deadline_s(timeout_s)
                await self._pool.wait_up(max(LAST_ATTEMPT_S, deadline_s - time.monotonic()))
                if not self.link.is_up:
                    self.migrate()
            endpoint = self._endpoint
            try:
                return await self.attempt(attempt)
            except (Unavailable, ResourceExhausted):
                deadline_s = deadline_s or self._deadline_s(timeout_s)
                tried.add(endpoint)
                # Another hypothesis of a beam search may have migrated already.
                if self._endpoint is not endpoint or self.migrate(tried):
                    continue
                if time.monotonic() + backoff.pause_s > deadline_s:
                    raise
                tried.clear()
                await asyncio.sleep(backoff.take())

    async def attempt(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Raises what `attempt` raises, and FatalRequest if endpoints die of it."""
        if self.suspicion.is_suspect:
            async with self.suspicion.trial():
                return await self._judged(attempt())
        return await self._judged(attempt())

    def on_lost(self, error: ServerLost) -> None:
        """Raises FatalRequest if endpoints die of the generation."""
        # Hypotheses of a beam search are lost together.
        if self._loss is not error.loss:
            self._loss = error.loss
            self.suspicion.on_death()

    def learn_cached(self, num_tokens: int) -> None:
        """Corrects what the endpoint is believed to have cached of the context."""
        self._endpoint.known.drop(self._digests[num_tokens // self._pool.num_block_tokens :])

    def release(self) -> None:
        """Leaves the endpoint. What was fed there stays in its prefix cache."""
        if self.link.is_up and self.num_fed:
            self._endpoint.known.add(self._digests[: self.num_fed // self._pool.num_block_tokens])
        self._leave()

    async def _judged(self, answer: Awaitable[T]) -> T:
        try:
            found = await answer
        except ServerLost as error:
            self.on_lost(error)
            raise
        self.suspicion.on_progress(1)
        return found

    def _deadline_s(self, timeout_s: float) -> float:
        return time.monotonic() + timeout_s - self._pool.away_s

    @property
    def _digests(self) -> Sequence[bytes]:
        """Returns digests of the context's whole blocks; none if there is no choice or the block size is unknown."""
        num_block_tokens = self._pool.num_block_tokens
        if num_block_tokens > 1 and len(self._pool.endpoints) > 1:
            new = block_digests(self._known_digests, self._tokens, self._salt, num_block_tokens)
            self._known_digests += list(new)
        return self._known_digests

    def _choose(self, without: Collection[Endpoint] = ()) -> Endpoint | None:
        return self._pool.choose(
            self._digests, len(self._tokens), self._num_new, self._num_reserved, without, self._asked_model
        )

    def _enter(self, endpoint: Endpoint) -> None:
        endpoint.place(1, self._num_reserved)
        # An attribute for speed.
        self.link: Link = endpoint.link
        self._endpoint = endpoint
        # Tokens of the context in the endpoint's cache after its last answer.
        self.num_fed = 0

    def _leave(self) -> None:
        self._endpoint.place(-1, -self._num_reserved)
