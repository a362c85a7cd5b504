"""Which coordinator serves a request: the one that has read the same beginning before, unless it has too much to do."""

import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.results import Deployment, Piece

T = TypeVar("T")
# How long a coordinator that did not answer is passed over.
AWAY_S = 2.0
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

    def __init__(self, addresses: list[str]) -> None:
        """Call it on the event loop that serves. Raises InvalidArgument for what is no address."""
        self._all = [Coordinator(address, AsyncClient(address)) for address in addresses]

    async def close(self) -> None:
        for each in self._all:
            await each.client.close()

    def ranked(self, beginning: str) -> list[Coordinator]:
        """In the order in which to try them: rendezvous hashing with bounded loads; who is away comes last."""

        def rank(each: Coordinator) -> bytes:
            return hashlib.blake2b(f"{each.address} {beginning}".encode(errors="replace"), digest_size=8).digest()

        most = MOST_OVER_MEAN * (sum(each.num_open for each in self._all) + 1) / len(self._all)
        return sorted(self._all, key=lambda each: (each.is_away, each.num_open >= most, rank(each)))

    async def describe(self, key: str | None) -> Deployment:
        """Models, limits and defaults, at most 10 s old. With a key they are asked for anew: the coordinator checks it.
        Raises Unavailable if no coordinator answers."""

        async def ask(each: Coordinator) -> Deployment:
            if key is None and each.described is not None and time.monotonic() < each.described_until_s:
                return each.described
            each.described = await each.client_for(key).describe()
            each.described_until_s = time.monotonic() + DESCRIBED_S
            return each.described

        return await self.ask("", ask)

    async def ask(self, beginning: str, ask: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The answer of the first coordinator that gives one. Raises Unavailable, the first's, if none does."""
        failures = []
        for coordinator in self.ranked(beginning):
            try:
                with coordinator.counted():
                    return await ask(coordinator)
            except Unavailable as error:
                failures.append(error)
        raise failures[0]

    async def stream(
        self, beginning: str, key: str | None, start: Callable[[AsyncClient], AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """A generation's rounds. Who does not answer is passed over, but not one that has begun: its text is out."""
        failures = []
        for coordinator in self.ranked(beginning):
            has_begun = False
            try:
                with coordinator.counted():
                    async with aclosing(start(coordinator.client_for(key))) as pieces:
                        async for piece in pieces:
                            has_begun = True
                            yield piece
                return
            except Unavailable as error:
                if has_begun:
                    raise
                failures.append(error)
        raise failures[0]
