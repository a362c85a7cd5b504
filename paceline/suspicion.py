"""Which requests may have killed a server.

When a server dies, what it worked on begins again elsewhere. One deadly request would kill all servers like that, so each is
judged by how far it got:

    further than in any try before    innocent so far: it begins again at once
    no further                        a suspect: it is tried once more, and one suspect at a time
    no further as a suspect           refused
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from paceline.errors import FatalRequest

# Deaths that a request may be open at, and the tokens that allow another.
MAX_DEATHS, TOKENS_PER_DEATH = 2, 16


@dataclass(slots=True, eq=False)
class Fate:
    """What the streams of one request share: with one of them all are refused."""

    # By kind of server.
    refused: set[str] = field(default_factory=set)


class Suspicion:
    """What one stream of a request has to do with the deaths of servers."""

    def __init__(self, server: str, trials: asyncio.Lock, fate: Fate) -> None:
        """server: its kind, as users know it.
        trials: held while a suspect is tried.
        fate: of the whole request.
        """
        self.is_suspect = False
        self._server, self._trials, self._fate = server, trials, fate
        self._num_deaths = self._num_tokens = 0
        self._has_got_on = self._is_tried = self._was_accepted = False

    @property
    def is_refused(self) -> bool:
        return self._server in self._fate.refused

    @property
    def must_wait(self) -> bool:
        """Whether another suspect is tried before it."""
        return self.is_suspect and self._trials.locked()

    @asynccontextmanager
    async def trial(self) -> AsyncIterator[None]:
        """Surrounds each try. That of a suspect waits for its turn, which ends as soon as it gets on. Raises FatalRequest."""
        if self.is_suspect:
            await self._trials.acquire()
            self._is_tried = True
        try:
            if self.is_refused:
                raise self._refusal()
            yield
        finally:
            self._end_trial()

    def on_accepted(self) -> None:
        """Notes that a server has read the request, which is progress once."""
        if not self._was_accepted:
            self._was_accepted = True
            self.on_progress(0)

    def on_progress(self, num_tokens: int) -> None:
        """`num_tokens`: new ones, not repeated."""
        self._num_tokens += num_tokens
        self._has_got_on, self.is_suspect = True, False
        self._end_trial()

    def on_death(self) -> None:
        """Notes that the server died during a try. Raises FatalRequest if there must not be another."""
        self._num_deaths += 1
        if self.is_suspect or self._num_deaths > MAX_DEATHS + self._num_tokens // TOKENS_PER_DEATH:
            self._fate.refused.add(self._server)
            raise self._refusal()
        self.is_suspect = not self._has_got_on
        self._has_got_on = False

    def _refusal(self) -> FatalRequest:
        return FatalRequest(
            f"{self._num_deaths} times a {self._server} died or fell silent while it worked on this request; it is not "
            "tried again"
        )

    def _end_trial(self) -> None:
        if self._is_tried:
            self._is_tried = False
            self._trials.release()
