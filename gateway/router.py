"""Which coordinator serves a request: the one that has read the same beginning before, unless it has too much to do."""

import asyncio
import hashlib
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from gateway.telemetry import GatewayMetrics
from paceline.client import AsyncClient, Tls
from paceline.errors import Aborted, Unavailable
from paceline.results import Deployment, Piece


@dataclass(slots=True)
class BufferedChoice:
    """What a client has of one choice."""

    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False


class ReplayBuffer:
    """All choices of a request, by their index."""

    def __init__(self) -> None:
        self._choices: dict[int, BufferedChoice] = {}

    def add(self, piece: Piece) -> None:
        choice = self._choices.setdefault(piece.index, BufferedChoice())
        choice.token_ids += piece.token_ids
        choice.is_finished = piece.finish is not None

    @property
    def is_empty(self) -> bool:
        return not self._choices

    def snapshot(self) -> dict[int, BufferedChoice]:
        """A copy, by the choices' index: what is delivered later is not in it."""
        return {index: replace(each, token_ids=list(each.token_ids)) for index, each in self._choices.items()}

    @property
    def prediction(self) -> list[int] | None:
        """What a repetition will begin with: drafts that are right. Of several unfinished choices the longest's tokens."""
        unfinished = [each.token_ids for each in self._choices.values() if not each.is_finished]
        return max(unfinished, key=len, default=None) or None


class Resumption:
    """A request's pieces once more, without what was delivered before."""

    def __init__(self, replay_buffer: ReplayBuffer) -> None:
        # Before the repetition began. A choice of which nothing was delivered begins with it, and is never compared.
        self._sent = replay_buffer.snapshot()
        # Tokens of this repetition so far, by choice.
        self._num_tokens: dict[int, int] = {}

    def new_part(self, piece: Piece) -> Piece | None:
        """The part of `piece` that the client lacks; None: it has all of it.

        Raises Aborted where the tokens are others than those delivered: then there is no going on.
        """
        choice = self._sent.get(piece.index)
        if choice is None:
            return piece
        start = self._num_tokens.get(piece.index, 0)
        self._num_tokens[piece.index] = start + len(piece.token_ids)
        known = choice.token_ids[start:]
        num_known = min(len(known), len(piece.token_ids))
        if piece.token_ids[:num_known] != known[:num_known]:
            raise Aborted("the coordinator went away, and another one's answer begins with other tokens")
        if choice.is_finished or (num_known == len(piece.token_ids) and piece.finish is None):
            return None
        return _drop_tokens(piece, num_known)


def _drop_tokens(piece: Piece, num_tokens: int) -> Piece:
    """`piece` without its first tokens, and without what only an answer's first piece has. A round that is cut has no trace."""
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
    """One request's. It counts from a failure on, and anew once the answer came further."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._failing_since_s: float | None = None
        self.failure = Unavailable("no coordinator was asked")

    def on_failure(self, error: Unavailable) -> None:
        self.failure = error
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()

    def on_progress(self) -> None:
        self._failing_since_s = None

    @property
    def has_expired(self) -> bool:
        return self._failing_since_s is not None and time.monotonic() - self._failing_since_s >= self._timeout_s


T = TypeVar("T")
# How long a coordinator that did not answer is passed over.
COOLDOWN_S = 2.0
# Between two rounds of asking all of them.
RETRY_INTERVAL_S = 0.2
# A coordinator takes requests until it has so many times the average of open ones; then the next in rank does.
MAX_LOAD_FACTOR = 1.25
# What a coordinator says of itself is asked for again after so long.
DESCRIPTION_TTL_S = 10.0


@dataclass(slots=True, eq=False)
class Coordinator:
    """One of them: its address, its client, and what it has to do."""

    address: str
    client: AsyncClient
    num_open: int = 0
    away_until_s: float = 0.0
    # Whether it ever answered. One that did is worth waiting for.
    has_answered: bool = False
    deployment: Deployment | None = None
    deployment_until_s: float = 0.0

    def client_for(self, key: str | None) -> AsyncClient:
        """One that sends the caller's key; without one, what the gateway's own environment says."""
        return self.client if key is None else self.client.with_key(key)

    @property
    def is_away(self) -> bool:
        return time.monotonic() < self.away_until_s

    @contextmanager
    def track_request(self) -> Iterator[None]:
        """Counts a request. A coordinator that does not answer it is passed over for a while."""
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
    """All of them. Requests with the same beginning go to the same one: its target's cache holds that beginning."""

    def __init__(self, addresses: list[str], timeout_s: float, tls: Tls, metrics: GatewayMetrics) -> None:
        """Call it on the event loop that serves. `patience_s`: how long a request waits for coordinators that went away.
        Raises InvalidArgument for what is no address, ConfigError for bad files of `tls`."""
        self._all = [Coordinator(address, AsyncClient(address, tls=tls)) for address in addresses]
        self._timeout_s = timeout_s
        self.metrics = metrics

    async def close(self) -> None:
        for each in self._all:
            await each.client.close()

    def ranked(self, prefix: str) -> list[Coordinator]:
        """In the order in which to try them: rendezvous hashing with bounded loads; who is away comes last."""

        def rank(each: Coordinator) -> bytes:
            return hashlib.blake2b(f"{each.address} {prefix}".encode(errors="replace"), digest_size=8).digest()

        max_open = MAX_LOAD_FACTOR * (sum(each.num_open for each in self._all) + 1) / len(self._all)
        return sorted(self._all, key=lambda each: (each.is_away, each.num_open >= max_open, rank(each)))

    async def describe(self, key: str | None, as_it_is_now: bool = False) -> Deployment:
        """Models, limits and defaults, at most 10 s old. They are asked for anew with a key, which the coordinator
        checks, and for `as_it_is_now`. Raises Unavailable if no coordinator answers."""

        async def ask(each: Coordinator) -> Deployment:
            may_be_known = key is None and not as_it_is_now
            if may_be_known and each.deployment is not None and time.monotonic() < each.deployment_until_s:
                return each.deployment
            each.deployment = await each.client_for(key).describe()
            each.deployment_until_s = time.monotonic() + DESCRIPTION_TTL_S
            self.metrics.target_name = each.deployment.target.name
            return each.deployment

        return await self.ask("", ask)

    async def ask(self, prefix: str, ask: Callable[[Coordinator], Awaitable[T]]) -> T:
        """The answer of the first coordinator that gives one. Raises Unavailable, the last's, if none does."""
        deadline = RetryDeadline(self._timeout_s)
        async with aclosing(self._attempts(prefix, deadline)) as attempts:
            async for coordinator in attempts:
                try:
                    with coordinator.track_request():
                        answer = await ask(coordinator)
                        coordinator.has_answered = True
                        return answer
                except Unavailable as error:
                    deadline.on_failure(error)
        raise deadline.failure

    async def stream(
        self, prefix: str, key: str | None, start: Callable[[AsyncClient, ReplayBuffer], AsyncGenerator[Piece, None]]
    ) -> AsyncGenerator[Piece, None]:
        """An answer's rounds. If its coordinator goes away, another one goes on, or the same once it is back.

        `start` asks a coordinator for the whole answer, knowing what was delivered of it. Raises Unavailable, the
        last's, if none answers, and Aborted if one answers with other tokens than those delivered.
        """
        replay_buffer, deadline = ReplayBuffer(), RetryDeadline(self._timeout_s)
        async with aclosing(self._attempts(prefix, deadline)) as attempts:
            async for coordinator in attempts:
                resumption, is_resumed = Resumption(replay_buffer), not replay_buffer.is_empty
                try:
                    with coordinator.track_request():
                        async with aclosing(start(coordinator.client_for(key), replay_buffer)) as pieces:
                            async for piece in pieces:
                                coordinator.has_answered = True
                                if (rest := resumption.new_part(piece)) is not None:
                                    if is_resumed:
                                        self.metrics.count_continued()
                                        is_resumed = False
                                    replay_buffer.add(rest)
                                    deadline.on_progress()
                                    yield rest
                    return
                except Unavailable as error:
                    deadline.on_failure(error)
        raise deadline.failure

    async def _attempts(self, prefix: str, deadline: RetryDeadline) -> AsyncGenerator[Coordinator, None]:
        """Whom to ask: each in rank, and again while there is patience, if one of them was ever there."""
        while True:
            for coordinator in self.ranked(prefix):
                yield coordinator
            if deadline.has_expired or not any(each.has_answered for each in self._all):
                return
            await asyncio.sleep(RETRY_INTERVAL_S)


# Far more than any vocabulary in use has.
MAX_CACHED_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client sees it: its bytes, and a text that tells it from others."""

    text: str
    utf8: bytes


class TokenTexts:
    """Texts by token id. All coordinators of a gateway serve the same model."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._by_id: dict[int, TokenText] = {}

    def __getitem__(self, token: int) -> TokenText:
        return self._by_id[token]

    async def load(self, ids: set[int], key: str | None) -> None:
        """Makes `ids` known. Raises what a coordinator raises."""
        unknown = sorted(ids - self._by_id.keys())
        if not unknown:
            return
        if len(self._by_id) + len(unknown) > MAX_CACHED_TOKENS:
            self._by_id.clear()
            unknown = sorted(ids)
        # A coordinator takes no more ids at once than its model takes tokens.
        max_open = (await self._coordinators.describe(key)).target.max_model_len
        for start in range(0, len(unknown), max_open):
            await self._load(unknown[start : start + max_open], key)

    async def _load(self, ids: list[int], key: str | None) -> None:
        found = await self._coordinators.ask(
            "", lambda each: each.client_for(key).detokenize(ids, skip_special_tokens=False)
        )
        for token, utf8 in zip(ids, found.pieces, strict=True):
            self._by_id[token] = TokenText(_readable(utf8), utf8)


def _readable(utf8: bytes) -> str:
    """The token's text; part of a character as OpenAI writes it, "bytes:\\xe2\\x80"."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
