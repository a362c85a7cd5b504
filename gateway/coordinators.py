"""Which coordinator serves a request: the one that has read the same beginning before, unless it has too much to do."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from gateway.delivered import Delivered, Repetition
from gateway.metrics import GatewayMetrics
from gateway.patience import Patience
from paceline.client import AsyncClient, Tls
from paceline.errors import Unavailable
from paceline.results import Deployment, Piece

T = TypeVar("T")
# How long a coordinator that did not answer is passed over.
AWAY_S = 2.0
# Between two rounds of asking all of them.
PAUSE_S = 0.2
# A coordinator takes requests until it has so many times the average of open ones; then the next in rank does.
MOST_OVER_MEAN = 1.25
# What a coordinator says of itself is asked for again after so long.
DESCRIBED_S = 10.0


@dataclass(slots=True, eq=False)
class Coordinator:
    """One of them: its address, its client, and what it has to do."""

    address: str
    client: AsyncClient
    num_open: int = 0
    away_until_s: float = 0.0
    # Whether it ever answered. One that did is worth waiting for.
    was_there: bool = False
    described: Deployment | None = None
    described_until_s: float = 0.0

    def client_for(self, key: str | None) -> AsyncClient:
        """One that sends the caller's key; without one, what the gateway's own environment says."""
        return self.client if key is None else self.client.with_key(key)

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self.away_until_s

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Counts a request. A coordinator that does not answer it is passed over for a while."""
        self.num_open += 1
        try:
            yield
        except Unavailable:
            self.away_until_s = time.monotonic() + AWAY_S
            self.described_until_s = 0.0
            raise
        finally:
            self.num_open -= 1


class Coordinators:
    """All of them. Requests with the same beginning go to the same one: its target's cache holds that beginning."""

    def __init__(self, addresses: list[str], patience_s: float, tls: Tls, metrics: GatewayMetrics) -> None:
        """Call it on the event loop that serves. `patience_s`: how long a request waits for coordinators that went away.
        Raises InvalidArgument for what is no address, ConfigError for bad files of `tls`."""
        self._all = [Coordinator(address, AsyncClient(address, tls=tls)) for address in addresses]
        self._patience_s = patience_s
        self.metrics = metrics

    async def close(self) -> None:
        for each in self._all:
            await each.client.close()

    def ranked(self, beginning: str) -> list[Coordinator]:
        """In the order in which to try them: rendezvous hashing with bounded loads; who is away comes last."""

        def rank(each: Coordinator) -> bytes:
            return hashlib.blake2b(f"{each.address} {beginning}".encode(errors="replace"), digest_size=8).digest()

        most = MOST_OVER_MEAN * (sum(each.num_open for each in self._all) + 1) / len(self._all)
        return sorted(self._all, key=lambda each: (each.is_away, each.num_open >= most, rank(each)))

    async def describe(self, key: str | None, as_it_is_now: bool = False) -> Deployment:
        """Models, limits and defaults, at most 10 s old. They are asked for anew with a key, which the coordinator
        checks, and for `as_it_is_now`. Raises Unavailable if no coordinator answers."""

        async def ask(each: Coordinator) -> Deployment:
            may_be_known = key is None and not as_it_is_now
            if may_be_known and each.described is not None and time.monotonic() < each.described_until_s:
                return each.described
            each.described = await each.client_for(key).describe()
            each.described_until_s = time.monotonic() + DESCRIBED_S
            self.metrics.target_name = each.described.target.name
            return each.described

        return await self.ask("", ask)

    async def ask(self, beginning: str, ask: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The answer of the first coordinator that gives one. Raises Unavailable, the last's, if none does."""
        patience = Patience(self._patience_s)
        async with aclosing(self._trials(beginning, patience)) as trials:
            async for coordinator in trials:
                try:
                    with coordinator.counted():
                        answer = await ask(coordinator)
                        coordinator.was_there = True
                        return answer
                except Unavailable as error:
                    patience.note_failure(error)
        raise patience.failure

    async def stream(
        self, beginning: str, key: str | None, start: Callable[[AsyncClient, Delivered], AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """An answer's rounds. If its coordinator goes away, another one goes on, or the same once it is back.

        `start` asks a coordinator for the whole answer, knowing what was delivered of it. Raises Unavailable, the
        last's, if none answers, and Aborted if one answers with other tokens than those delivered.
        """
        delivered, patience = Delivered(), Patience(self._patience_s)
        async with aclosing(self._trials(beginning, patience)) as trials:
            async for coordinator in trials:
                repetition, is_begun = Repetition(delivered), not delivered.is_empty
                try:
                    with coordinator.counted():
                        async with aclosing(start(coordinator.client_for(key), delivered)) as pieces:
                            async for piece in pieces:
                                coordinator.was_there = True
                                if (rest := repetition.rest_of(piece)) is not None:
                                    if is_begun:
                                        self.metrics.count_continued()
                                        is_begun = False
                                    delivered.add(rest)
                                    patience.note_progress()
                                    yield rest
                    return
                except Unavailable as error:
                    patience.note_failure(error)
        raise patience.failure

    async def _trials(self, beginning: str, patience: Patience) -> AsyncGenerator[Coordinator, None]:
        """Whom to ask: each in rank, and again while there is patience, if one of them was ever there."""
        while True:
            for coordinator in self.ranked(beginning):
                yield coordinator
            if patience.is_over or not any(each.was_there for each in self._all):
                return
            await asyncio.sleep(PAUSE_S)
