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
class DeliveredChoice:
    """What a client has of one choice."""

    token_ids: list[int] = field(default_factory=list)
    is_finished: bool = False


class Delivered:
    """All choices of a request, by their index."""

    def __init__(self) -> None:
        self._choices: dict[int, DeliveredChoice] = {}

    def add(self, piece: Piece) -> None:
        choice = self._choices.setdefault(piece.index, DeliveredChoice())
        choice.token_ids += piece.token_ids
        choice.is_finished = piece.finish is not None

    @property
    def is_empty(self) -> bool:
        return not self._choices

    def as_it_stands(self) -> dict[int, DeliveredChoice]:
        """A copy, by the choices' index: what is delivered later is not in it."""
        return {index: replace(each, token_ids=list(each.token_ids)) for index, each in self._choices.items()}

    @property
    def prediction(self) -> list[int] | None:
        """What a repetition will begin with: drafts that are right. Of several unfinished choices the longest's tokens."""
        unfinished = [each.token_ids for each in self._choices.values() if not each.is_finished]
        return max(unfinished, key=len, default=None) or None


class Repetition:
    """A request's pieces once more, without what was delivered before."""

    def __init__(self, delivered: Delivered) -> None:
        # Before the repetition began. A choice of which nothing was delivered begins with it, and is never compared.
        self._before = delivered.as_it_stands()
        # Tokens of this repetition so far, by choice.
        self._num_tokens: dict[int, int] = {}

    def rest_of(self, piece: Piece) -> Piece | None:
        """The part of `piece` that the client lacks; None: it has all of it.

        Raises Aborted where the tokens are others than those delivered: then there is no going on.
        """
        choice = self._before.get(piece.index)
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
        return _behind(piece, num_known)


def _behind(piece: Piece, num_tokens: int) -> Piece:
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


class Patience:
    """One request's. It counts from a failure on, and anew once the answer came further."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failing_since_s: float | None = None
        self.failure = Unavailable("no coordinator was asked")

    def note_failure(self, error: Unavailable) -> None:
        self.failure = error
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()

    def note_progress(self) -> None:
        self._failing_since_s = None

    @property
    def is_over(self) -> bool:
        return self._failing_since_s is not None and time.monotonic() - self._failing_since_s >= self._patience_s


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


# Far more than any vocabulary in use has.
MOST_KNOWN = 1_000_000


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token as a client sees it: its bytes, and a text that tells it from others."""

    text: str
    utf8: bytes


class TokenTexts:
    """Texts by token id. All coordinators of a gateway serve the same model."""

    def __init__(self, coordinators: Coordinators) -> None:
        self._coordinators = coordinators
        self._known: dict[int, TokenText] = {}

    def __getitem__(self, token: int) -> TokenText:
        return self._known[token]

    async def learn(self, ids: set[int], key: str | None) -> None:
        """Makes `ids` known. Raises what a coordinator raises."""
        unknown = sorted(ids - self._known.keys())
        if not unknown:
            return
        if len(self._known) + len(unknown) > MOST_KNOWN:
            self._known.clear()
            unknown = sorted(ids)
        # A coordinator takes no more ids at once than its model takes tokens.
        most = (await self._coordinators.describe(key)).target.max_model_len
        for start in range(0, len(unknown), most):
            await self._learn(unknown[start : start + most], key)

    async def _learn(self, ids: list[int], key: str | None) -> None:
        found = await self._coordinators.ask(
            "", lambda each: each.client_for(key).detokenize(ids, skip_special_tokens=False)
        )
        for token, utf8 in zip(ids, found.pieces, strict=True):
            self._known[token] = TokenText(_readable(utf8), utf8)


def _readable(utf8: bytes) -> str:
    """The token's text; part of a character as OpenAI writes it, "bytes:\\xe2\\x80"."""
    try:
        return utf8.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in utf8)
