"""Routes requests to coordinators by prompt prefix and load; retries them and resumes broken streams.

The seed determines the output, so another coordinator can repeat a response. Tokens that the client has are compared and
dropped.
"""

import asyncio
import copy
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gateway.telemetry import GatewayMetrics
from paceline.client import AsyncClient, Tls
from paceline.errors import Aborted, PacelineError, PermissionDenied, Unauthenticated, Unavailable
from paceline.results import Deployment, Detokenized, Piece, ToolCallDelta
from paceline.rpc.members import Members

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
# Far above any vocabulary's size.
MAX_CACHED_TOKENS = 1_000_000


@dataclass(slots=True)
class BufferedChoice:
    token_ids: list[int] = field(default_factory=list)
    # Characters of the reasoning, and of each call's arguments.
    num_reasoning: int = 0
    arguments: list[int] = field(default_factory=list)
    is_finished: bool = False


class AnotherModel(Exception):
    """A coordinator would not repeat a response: its target's tokens may be others."""


class ReplayBuffer:
    """What the client has of a response."""

    def __init__(self) -> None:
        self._choices: dict[int, BufferedChoice] = {}
        # Of the model that made it (`Piece.identity`).
        self.identity = ""

    def add(self, piece: Piece) -> None:
        self.identity = self.identity or piece.identity
        choice = self._choices.setdefault(piece.index, BufferedChoice())
        choice.token_ids += piece.token_ids
        choice.num_reasoning += len(piece.reasoning)
        for delta in piece.tool_calls:
            if delta.index == len(choice.arguments):
                choice.arguments.append(0)
            choice.arguments[delta.index] += len(delta.arguments)
        choice.is_finished = piece.finish is not None

    @property
    def is_empty(self) -> bool:
        return not self._choices

    def snapshot(self) -> dict[int, BufferedChoice]:
        return copy.deepcopy(self._choices)

    @property
    def prediction(self) -> list[int] | None:
        """Returns the longest unfinished choice: correct drafts for a resumption."""
        unfinished = [each.token_ids for each in self._choices.values() if not each.is_finished]
        return max(unfinished, key=len, default=None) or None


class Resumption:
    """Reasoning and calls have no tokens to count; but what was told of them begins what is told again."""

    def __init__(self, replay_buffer: ReplayBuffer) -> None:
        # Of reasoning and calls: what the repetition has not repeated yet.
        self._sent = replay_buffer.snapshot()
        self._identity = replay_buffer.identity
        # Tokens received, by choice.
        self._num_tokens: dict[int, int] = {}

    def new_part(self, piece: Piece) -> Piece | None:
        """Returns what the client lacks of `piece`. Raises AnotherModel, and Aborted if tokens differ."""
        if self._identity and piece.identity not in ("", self._identity):
            raise AnotherModel
        choice = self._sent.get(piece.index)
        if choice is None:
            return piece
        start = self._num_tokens.get(piece.index, 0)
        self._num_tokens[piece.index] = start + len(piece.token_ids)
        known = choice.token_ids[start:]
        num_known = min(len(known), len(piece.token_ids))
        if piece.token_ids[:num_known] != known[:num_known]:
            raise Aborted("the coordinator went away, and the repeated response has other tokens")
        num_thought = min(choice.num_reasoning, len(piece.reasoning))
        choice.num_reasoning -= num_thought
        calls = list(_new_calls(piece.tool_calls, choice.arguments))
        if choice.is_finished or (num_known == len(piece.token_ids) and piece.finish is None):
            return None
        return replace(_drop_tokens(piece, num_known), reasoning=piece.reasoning[num_thought:], tool_calls=calls)


def _new_calls(deltas: Sequence[ToolCallDelta], told: list[int]) -> Iterator[ToolCallDelta]:
    """Drops what was told, and counts it down: `told` are the characters of each call's arguments."""
    for delta in deltas:
        if delta.index >= len(told):
            yield delta
            continue
        num_known = min(told[delta.index], len(delta.arguments))
        told[delta.index] -= num_known
        if num_known < len(delta.arguments):
            yield ToolCallDelta(delta.index, arguments=delta.arguments[num_known:])


def _drop_tokens(piece: Piece, num_tokens: int) -> Piece:
    """Drops prompt log-probabilities and a partial round's trace as well."""
    return replace(
        piece,
        text=piece.text[sum(piece.text_lengths[:num_tokens]) :],
        token_ids=piece.token_ids[num_tokens:],
        origins=piece.origins[num_tokens:],
        text_lengths=piece.text_lengths[num_tokens:],
        logprobs=piece.logprobs[num_tokens:],
        prompt_logprobs=[],
        trace=piece.trace if num_tokens == 0 else None,
    )


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

    def client_for(self, key: str | None) -> AsyncClient:
        """Uses the caller's key, or by default the gateway's own."""
        return self.client if key is None else self.client.with_key(key)

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self.away_until_s

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Starts the cooldown if the coordinator is unavailable."""
        self.num_open += 1
        try:
            yield
        except Unavailable:
            self.away_until_s = time.monotonic() + COOLDOWN_S
            self.deployment_until_s = 0.0
            raise
        finally:
            self.num_open -= 1


class Coordinators:
    """Sends prompts with the same prefix to the same coordinator, for its prefix cache."""

    def __init__(self, source: Members, timeout_s: float, tls: Tls, metrics: GatewayMetrics) -> None:
        self._source, self._timeout_s, self._tls = source, timeout_s, tls
        self.metrics = metrics
        self._all: list[Coordinator] = []
        # Left the list; their connections are closed once they have no requests.
        self._dropped: list[Coordinator] = []
        self._following: asyncio.Task[None] | None = None

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
            await each.client.close()

    @property
    def addresses(self) -> list[str]:
        return [each.address for each in self._all]

    async def _follow(self) -> None:
        async for addresses in self._source.changes():
            self._set(addresses)
            for each in [each for each in self._dropped if each.num_open == 0]:
                self._dropped.remove(each)
                await each.client.close()

    def _set(self, addresses: Sequence[str]) -> None:
        """Answers under way at a coordinator that left the list go on there."""
        known = {each.address: each for each in self._all}
        self._dropped += [each for each in self._all if each.address not in addresses]
        self._all = [known.get(each) or Coordinator(each, AsyncClient(each, tls=self._tls)) for each in addresses]

    def ranked(self, prefix: str) -> list[Coordinator]:
        """Ranks by rendezvous hashing with bounded loads; unavailable coordinators last."""

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

        return await self._ask(ask)

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

    async def stream(
        self, prefix: str, key: str | None, start: Callable[[AsyncClient, ReplayBuffer], AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """Yields a response's rounds; if its coordinator goes away, resumes at any that is available.

        `start` requests the whole response. Raises Unavailable, or Aborted if the repeated tokens differ.
        """
        replay_buffer, deadline = ReplayBuffer(), self._deadline()
        # Until when not to ask coordinators of another model.
        unlike: dict[Coordinator, float] = {}
        async with aclosing(self._attempts(prefix, deadline)) as attempts:
            async for coordinator in attempts:
                if unlike.get(coordinator, 0.0) > time.monotonic():
                    continue
                pieces = start(coordinator.client_for(key), replay_buffer)
                try:
                    with coordinator.track_request():
                        async with aclosing(self._new_parts(coordinator, pieces, replay_buffer)) as parts:
                            async for part in parts:
                                deadline.on_progress()
                                yield part
                    return
                except AnotherModel:
                    unlike[coordinator] = time.monotonic() + COOLDOWN_S
                    deadline.on_failure(Unavailable(f"the coordinator at {coordinator.address} serves another model"))
                except Unavailable as error:
                    deadline.on_failure(error)
        raise deadline.failure

    async def _new_parts(
        self, coordinator: Coordinator, pieces: AsyncGenerator[Piece, None], replay_buffer: ReplayBuffer
    ) -> AsyncGenerator[Piece, None]:
        """Yields what the client lacks of a response, and adds it to the buffer."""
        resumption, is_resumed = Resumption(replay_buffer), not replay_buffer.is_empty
        async with aclosing(pieces):
            async for piece in pieces:
                coordinator.has_answered = True
                if (rest := resumption.new_part(piece)) is not None:
                    if is_resumed:
                        self.metrics.count_resumed()
                        is_resumed = False
                    replay_buffer.add(rest)
                    yield rest

    def _deadline(self) -> RetryDeadline:
        return RetryDeadline(self._timeout_s, self._source.text)

    async def _ask(self, call: Callable[[Coordinator], Awaitable[T]]) -> T:
        deadline = self._deadline()
        async with aclosing(self._attempts("", deadline)) as attempts:
            async for coordinator in attempts:
                try:
                    with coordinator.track_request():
                        answer = await call(coordinator)
                        coordinator.has_answered = True
                        return answer
                except Unavailable as error:
                    deadline.on_failure(error)
        raise deadline.failure

    async def _attempts(self, prefix: str, deadline: RetryDeadline) -> AsyncGenerator[Coordinator, None]:
        """Yields coordinators by rank: once, or until the deadline if any has answered before."""
        while True:
            for coordinator in self.ranked(prefix):
                yield coordinator
            if deadline.has_expired or not any(each.has_answered for each in self._all):
                return
            await asyncio.sleep(RETRY_INTERVAL_S)


@dataclass(frozen=True, slots=True)
class TokenText:
    """`text` distinguishes the token from others."""

    text: str
    utf8: bytes


class TokenTexts:
    """Caches token texts. All coordinators serve the same model."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._by_id: dict[int, TokenText] = {}

    def __getitem__(self, token: int) -> TokenText:
        return self._by_id[token]

    async def load(self, ids: set[int], key: str | None) -> None:
        missing = sorted(ids - self._by_id.keys())
        if not missing:
            return
        if len(self._by_id) + len(missing) > MAX_CACHED_TOKENS:
            self._by_id.clear()
            missing = sorted(ids)
        # A coordinator accepts at most a model's length of ids per call.
        size = (await self._coordinators.describe(key)).target.max_model_len
        for start in range(0, len(missing), size):
            batch = missing[start : start + size]
            found = await self._coordinators.detokenize(batch, key)
            for token, utf8 in zip(batch, found.pieces, strict=True):
                self._by_id[token] = TokenText(_readable(utf8), utf8)


def _readable(utf8: bytes) -> str:
    """Writes an incomplete character as "bytes:\\xe2\\x80", as OpenAI does."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
