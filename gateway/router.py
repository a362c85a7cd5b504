"""Routes requests to coordinators by prompt prefix and load; retries them and resumes broken streams.

The seed determines the output, so another coordinator can repeat a response. Tokens that the client has are compared and
dropped.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TypeVar

from gateway.replay import AnotherModel, ReplayBuffer, Resumption
from gateway.telemetry import GatewayMetrics
from paceline.client import AsyncClient, Tls
from paceline.errors import (
    ConnectionLost,
    FatalRequest,
    PacelineError,
    PermissionDenied,
    Unauthenticated,
    Unavailable,
)
from paceline.results import Chunk, Deployment, Detokenized
from paceline.rpc.address_source import AddressSource
from paceline.suspicion import Fate, Suspicion

log = logging.getLogger(__name__)
T = TypeVar("T")
# How long an unavailable coordinator ranks last.
COOLDOWN_S = 2.0
# Pause between two passes over all coordinators.
RETRY_INTERVAL_S = 0.2
# Maximum load as a multiple of the mean number of open requests.
MAX_LOAD_FACTOR = 1.25
# How long a coordinator's description is cached.
DESCRIPTION_TTL_S = 10.0
# Interval at which metrics of the target are updated, and how long a coordinator may take to answer.
FOLLOW_INTERVAL_S, FOLLOW_TIMEOUT_S = 1.0, 5.0
# Interval of health checks. A coordinator that leaves one without an answer gets no more requests after SILENT_S, and counts
# as gone after STALL_S.
CHECK_INTERVAL_S, SILENT_S, STALL_S = 1.0, 2.0, 10.0
STALL_PARTS = 10


# Requests a response from a client, with what the caller has of it, and what is to be called when it has been read.
Start = Callable[[AsyncClient, ReplayBuffer, Callable[[], None] | None], AsyncGenerator[Chunk, None]]


class RetryDeadline:
    """Counts from the first failure since the last progress."""

    def __init__(self, timeout_s: float, coordinators: str) -> None:
        """`coordinators`: their list, as users know it."""
        self._timeout_s = timeout_s
        self._failing_since_s: float | None = None
        self.failure = Unavailable(f"there is no coordinator: {coordinators}")

    def on_failure(self, error: Unavailable) -> None:
        self.failure = error
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()

    def on_progress(self) -> None:
        self._failing_since_s = None

    @property
    def has_expired(self) -> bool:
        return self._failing_since_s is not None and time.monotonic() - self._failing_since_s >= self._timeout_s


@dataclass(slots=True, eq=False)
class Coordinator:
    address: str
    client: AsyncClient
    num_open: int = 0
    away_until_s: float = 0.0
    # Requests are retried only if a coordinator has answered before.
    has_answered: bool = False
    deployment: Deployment | None = None
    deployment_until_s: float = 0.0
    # Since when a health check has waited for an answer.
    checked_since_s: float | None = None

    def client_for(self, key: str | None) -> AsyncClient:
        """Uses the caller's key, or by default the gateway's own."""
        return self.client if key is None else self.client.with_key(key)

    @property
    def is_away(self) -> bool:
        now_s = time.monotonic()
        is_silent = self.checked_since_s is not None and now_s - self.checked_since_s > SILENT_S
        return is_silent or now_s < self.away_until_s

    async def watch(self) -> None:
        """Ends the calls in flight, as if the connection broke, when the coordinator has hung for STALL_S."""
        while True:
            self.checked_since_s = self.checked_since_s or time.monotonic()
            if not await self._settles():
                log.warning("the coordinator at %s has not answered for %g s", self.address, STALL_S)
                self.client.drop_calls()
                continue
            self.checked_since_s = None
            await asyncio.sleep(CHECK_INTERVAL_S)

    async def _settles(self) -> bool:
        """Returns whether a health check ends, in whatever way, within STALL_S."""
        checking = asyncio.ensure_future(self.client.check_alive())
        try:
            # In parts: a gateway that was stopped has not waited meanwhile.
            for _ in range(STALL_PARTS):
                if (await asyncio.wait((checking,), timeout=STALL_S / STALL_PARTS))[0]:
                    with suppress(Unavailable):
                        checking.result()
                    return True
            return False
        finally:
            checking.cancel()

    @asynccontextmanager
    async def track_request(self, suspicion: Suspicion) -> AsyncIterator[None]:
        """Starts the cooldown if the coordinator is unavailable."""
        self.num_open += 1
        try:
            if suspicion.is_suspect or self.is_away:
                # A death must be its own: the connection may have broken before, or the coordinator hang already.
                await self.client.check_alive()
            yield
        except Unavailable:
            self.away_until_s = time.monotonic() + COOLDOWN_S
            self.deployment_until_s = 0.0
            raise
        finally:
            self.num_open -= 1


class Coordinators:
    """Sends prompts with the same prefix to the same coordinator, for its prefix cache."""

    def __init__(self, source: AddressSource, timeout_s: float, tls: Tls, metrics: GatewayMetrics) -> None:
        self._source, self._timeout_s, self._tls = source, timeout_s, tls
        self.metrics = metrics
        self._all: list[Coordinator] = []
        # Left the list; their connections are closed once they have no requests.
        self._dropped: list[Coordinator] = []
        self._following: asyncio.Task[None] | None = None
        self._watching: dict[Coordinator, asyncio.Task[None]] = {}
        self._trials = asyncio.Lock()

    async def start(self) -> None:
        """Reads the list; without one, waits for it in the background. Raises InvalidArgument and ConfigError."""
        with suppress(Unavailable):
            self._set(await self._source.read())
        if not self._source.is_fixed:
            self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
        for each in (*self._all, *self._dropped):
            await self._close(each)

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self._all]

    async def _follow(self) -> None:
        async for addresses in self._source.changes():
            self._set(addresses)
            for each in [each for each in self._dropped if each.num_open == 0]:
                self._dropped.remove(each)
                await self._close(each)

    async def _close(self, coordinator: Coordinator) -> None:
        self._watching.pop(coordinator).cancel()
        await coordinator.client.close()

    def _set(self, addresses: Sequence[str]) -> None:
        """Answers under way at a coordinator that left the list go on there."""
        known = {each.address: each for each in self._all}
        self._dropped += [each for each in self._all if each.address not in addresses]
        self._all = [known.get(each) or Coordinator(each, AsyncClient(each, tls=self._tls)) for each in addresses]
        for each in self._all:
            if each not in self._watching:
                self._watching[each] = asyncio.create_task(each.watch())

    def ranked(self, prefix: str, is_suspect: bool = False) -> list[Coordinator]:
        """Ranks by rendezvous hashing with bounded loads; unavailable coordinators last.

        A suspect goes where the fewest requests are open.
        """
        if is_suspect:
            return sorted(self._all, key=lambda each: (each.is_away, each.num_open))

        def rank(each: Coordinator) -> bytes:
            return hashlib.blake2b(f"{each.address} {prefix}".encode(errors="replace"), digest_size=8).digest()

        max_open = MAX_LOAD_FACTOR * (sum(each.num_open for each in self._all) + 1) / max(1, len(self._all))
        return sorted(self._all, key=lambda each: (each.is_away, each.num_open >= max_open, rank(each)))

    async def describe(self, key: str | None, as_it_is_now: bool = False) -> Deployment:
        """Caches only without a key, which the coordinator must check. Raises Unavailable."""

        async def ask(each: Coordinator) -> Deployment:
            may_be_cached = key is None and not as_it_is_now
            if may_be_cached and each.deployment is not None and time.monotonic() < each.deployment_until_s:
                return each.deployment
            each.deployment = await each.client_for(key).describe()
            each.deployment_until_s = time.monotonic() + DESCRIPTION_TTL_S
            self.metrics.on_target(each.deployment.target)
            return each.deployment

        return await self._ask(ask, is_clients=False)

    async def follow_target(self) -> None:
        """Keeps metrics of the target current. Returns if the gateway has no key of its own and needs one."""
        while True:
            for each in list(self._all):
                try:
                    async with asyncio.timeout(FOLLOW_TIMEOUT_S):
                        self.metrics.on_target((await each.client.describe()).target)
                    break
                except (Unauthenticated, PermissionDenied):
                    return
                except (PacelineError, TimeoutError):
                    continue
            await asyncio.sleep(FOLLOW_INTERVAL_S)

    async def ask(self, key: str | None, call: Callable[[AsyncClient], Awaitable[T]]) -> T:
        """Raises Unavailable."""
        return await self._ask(lambda each: call(each.client_for(key)))

    async def detokenize(self, ids: list[int], key: str | None) -> Detokenized:
        return await self.ask(key, lambda client: client.detokenize(ids, skip_special_tokens=False))

    async def stream(self, prefix: str, key: str | None, start: Start, fate: Fate) -> AsyncGenerator[Chunk, None]:
        """Yields a response's rounds; if its coordinator goes away, resumes at any that is available.

        start: requests the whole response.
        fate: what all prompts of a request share.

        Raises Unavailable, FatalRequest, or Aborted if the repeated tokens differ.
        """
        replay_buffer, deadline, suspicion = ReplayBuffer(), self._deadline(), self._suspicion(fate)
        # Until when not to ask coordinators of another model.
        unlike: dict[Coordinator, float] = {}
        async with aclosing(self._attempts(prefix, deadline, suspicion)) as attempts:
            async for coordinator in attempts:
                if unlike.get(coordinator, 0.0) > time.monotonic():
                    continue
                on_accepted = suspicion.on_accepted if suspicion.is_suspect else None
                chunks = start(coordinator.client_for(key), replay_buffer, on_accepted)
                try:
                    parts = self._new_parts(coordinator, chunks, replay_buffer)
                    async with coordinator.track_request(suspicion), aclosing(parts):
                        async for part in parts:
                            deadline.on_progress()
                            suspicion.on_progress(len(part.token_ids))
                            yield part
                    return
                except AnotherModel:
                    unlike[coordinator] = time.monotonic() + COOLDOWN_S
                    deadline.on_failure(Unavailable(f"the coordinator at {coordinator.address} serves another model"))
                except Unavailable as error:
                    deadline.on_failure(error)
                    self._judge(suspicion, error)
        raise deadline.failure

    async def _new_parts(
        self, coordinator: Coordinator, chunks: AsyncGenerator[Chunk, None], replay_buffer: ReplayBuffer
    ) -> AsyncGenerator[Chunk, None]:
        """Yields what the client lacks of a response, and adds it to the buffer."""
        resumption, is_resumed = Resumption(replay_buffer), not replay_buffer.is_empty
        async with aclosing(chunks):
            async for chunk in chunks:
                coordinator.has_answered = True
                if (rest := resumption.new_part(chunk)) is not None:
                    if is_resumed:
                        self.metrics.count_resumed()
                        is_resumed = False
                    replay_buffer.add(rest)
                    yield rest

    def _deadline(self) -> RetryDeadline:
        return RetryDeadline(self._timeout_s, self._source.text)

    def _suspicion(self, fate: Fate) -> Suspicion:
        return Suspicion("coordinator", self._trials, fate)

    def _judge(self, suspicion: Suspicion, error: Unavailable) -> None:
        """Raises FatalRequest if the request must not be tried again."""
        if not isinstance(error, ConnectionLost):
            return
        try:
            if error.was_accepted:
                suspicion.on_accepted()
            suspicion.on_death()
        except FatalRequest as refusal:
            self.metrics.count_fatal()
            log.error("%s (the last one: %s)", refusal, error)
            raise

    async def _ask(self, call: Callable[[Coordinator], Awaitable[T]], is_clients: bool = True) -> T:
        """`is_clients`: whether the call has anything of a client's in it that may do harm."""
        deadline, suspicion = self._deadline(), self._suspicion(Fate())
        async with aclosing(self._attempts("", deadline, suspicion)) as attempts:
            async for coordinator in attempts:
                try:
                    async with coordinator.track_request(suspicion):
                        answer = await call(coordinator)
                        coordinator.has_answered = True
                        return answer
                except Unavailable as error:
                    deadline.on_failure(error)
                    if is_clients:
                        self._judge(suspicion, error)
        raise deadline.failure

    async def _attempts(
        self, prefix: str, deadline: RetryDeadline, suspicion: Suspicion
    ) -> AsyncGenerator[Coordinator, None]:
        """Yields coordinators by rank: once, or until the deadline if any has answered before."""
        while True:
            tried: set[Coordinator] = set()
            for _ in self._all:
                async with suspicion.trial():
                    ranked = self.ranked(prefix, suspicion.is_suspect)
                    coordinator = next((each for each in ranked if each not in tried), None)
                    if coordinator is None:
                        break
                    tried.add(coordinator)
                    yield coordinator
            if deadline.has_expired or not any(each.has_answered for each in self._all):
                return
            await asyncio.sleep(RETRY_INTERVAL_S)
