"""All servers of one role, of which a generation uses one at a time.

AddressSource come and go with their list. One with an unsuitable model is asked again until it is started with another.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from typing import Any

from coordinator.remote.link import Link, ModelInfo, Role, Translate
from coordinator.remote.prefixes import KnownPrefixes
from coordinator.remote.server_load import UNKNOWN_TIMES, ForwardTimes
from coordinator.request import Request
from paceline.errors import ConfigError, Unavailable
from paceline.rpc.address_source import AddressSource
from paceline.rpc.channel import NO_TLS
from paceline.rpc.server import DRAIN_S
from paceline.rpc.tls import Tls

log = logging.getLogger(__name__)
# How many tokens a generation is expected to generate, at most.
EXPECTED_TOKENS = 128
# Servers of one pool count as equally fast up to this factor: less may be noise.
SAME_SPEED = 1.5
# Raises ConfigError for an unsuitable server at an address.
CheckModelInfo = Callable[[str, ModelInfo], None]


class Endpoint:
    def __init__(self, link: Link) -> None:
        self.link = link
        self._known = "", KnownPrefixes()
        # Generations here, and the tokens that they may come to have.
        self.num_placed = self.num_reserved = 0
        # No longer in the list: it gets no more generations.
        self.is_leaving = False

    def place(self, num_generations: int, num_tokens: int) -> None:
        """Adds generations (-1: removes one) and the tokens that they may come to have."""
        self.num_placed += num_generations
        self.num_reserved += num_tokens
        self.link.reservation = self.num_placed, self.num_reserved

    @property
    def is_serving(self) -> bool:
        return self.link.is_up and not self.link.is_silent

    @property
    def is_open(self) -> bool:
        """Whether it may get more generations."""
        return self.is_serving and not self.is_leaving and not self.link.load.is_draining

    @property
    def num_free_tokens(self) -> int:
        """Returns the tokens of its cache that no generation may come to need."""
        return self.link.num_cache_tokens - self.num_reserved

    @property
    def known(self) -> KnownPrefixes:
        """Returns what its process is believed to have cached: nothing after a restart."""
        if self._known[0] != self.link.process:
            self._known = self.link.process, KnownPrefixes()
        return self._known[1]

    @property
    def model(self) -> str:
        """Returns its model's name; empty while its model info was never seen."""
        return "" if self.link.model_info is None else self.link.model_info.name

    def has(self, model: str) -> bool:
        """Returns whether it has this model, or any if empty."""
        return not model or self.model == model


class Pool:
    def __init__(
        self, role: Role, source: AddressSource, check_model_info: CheckModelInfo, tls: Tls = NO_TLS,
        translate: Translate | None = None,
    ) -> None:  # fmt: skip
        self.role = role
        # As users know it, and whether endpoints never change.
        self.address, self.is_fixed = source.text, source.is_fixed
        self.endpoints: list[Endpoint] = []
        # Generations that went on at another endpoint.
        self.num_migrations = 0
        # Held while a generation is tried that may have killed an endpoint.
        self.trials = asyncio.Lock()
        self._source, self._check_model_info, self._tls, self._translate = source, check_model_info, tls, translate
        # Called when an endpoint has come up, was refused or said how it is doing.
        self.on_change: Callable[[], None] = lambda: None
        self._changed = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self, timeout_s: float = 0.0) -> None:
        """Connects to the endpoints. Raises Unavailable if their list can't be read within the time."""
        self._set(await self._source.wait(timeout_s))
        if not self.is_fixed:
            self.follow()

    def follow(self) -> None:
        """Connects to the endpoints in the background, whenever there are some."""
        self._spawn(self._follow())

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.link.stop() for each in self.endpoints))

    @property
    def is_up(self) -> bool:
        return any(each.link.is_up for each in self.endpoints)

    @property
    def away_s(self) -> float:
        """Returns 0 while an endpoint is up."""
        return min(each.link.away_s for each in self.endpoints)

    @property
    def model_info(self) -> ModelInfo | None:
        """Returns the model info of an endpoint that is up, or of the one that was up last."""
        links = [each.link for each in self.endpoints if each.link.model_info is not None]
        return max(links, key=lambda link: -link.away_s).model_info if links else None

    @property
    def models(self) -> list[str]:
        """Returns the names of the endpoints' models."""
        return sorted({each.model for each in self.endpoints} - {""})

    @property
    def channel(self) -> Any:
        """Returns a connection to an endpoint that is up."""
        return next(each.link.channel for each in self.endpoints if each.link.is_up)

    @property
    def forward_times(self) -> ForwardTimes:
        return next((each.link.forward_times for each in self.endpoints if each.link.is_up), UNKNOWN_TIMES)

    @property
    def draft_head_times(self) -> ForwardTimes | None:
        """Returns None if no endpoint has a draft head, or had one when it was up last."""
        times = (each.link.draft_head_times for each in self.endpoints)
        return next((each for each in times if each is not None), None)

    @property
    def num_blocks(self) -> tuple[int, int]:
        """Returns how many blocks are free, as last said, and how many there are, at all endpoints that are up."""
        links = [(each.link, each.link.model_info) for each in self.endpoints if each.link.is_up]
        model_infos = [
            (link.load.num_free_blocks, model_info.total_blocks) for link, model_info in links if model_info is not None
        ]
        return sum(free for free, _ in model_infos), sum(total for _, total in model_infos)

    def num_reserved_tokens(self, request: Request) -> int:
        """Returns how many tokens of a cache a request needs at most, in whole blocks.

        Each sequence counts at least `num_state_tokens`, so that sequences never outnumber recurrent states.
        """
        block_size, beams = self.num_block_tokens, request.sampling.beams
        # Beams share the prompt's full blocks.
        num_tokens = len(request.prompt) + beams * request.max_new_tokens + (beams - 1) * block_size
        state_tokens = max((each.link.num_state_tokens for each in self.endpoints), default=0)
        return max(-(-num_tokens // block_size) * block_size, beams * state_tokens)

    async def wait_up(self, timeout_s: float) -> None:
        """Raises Unavailable with the endpoints' last errors."""
        await self._wait(timeout_s, lambda: self.is_up)

    async def wait_usable(self, timeout_s: float) -> None:
        """Waits for an endpoint that is up. Raises Unavailable, and ConfigError at once if all are unsuitable."""
        await self._wait(timeout_s, lambda: self.is_up or all(each.link.is_refused for each in self.endpoints))
        if not self.is_up:
            raise ConfigError(self.absence)

    @property
    def absence(self) -> str:
        return "; ".join(each.link.absence for each in self.endpoints)

    def has_room(self, num_tokens: int) -> bool:
        """Returns whether an endpoint has room for a generation of `num_tokens` tokens. One larger than the cache runs alone.

        While no endpoint serves, absent ones count, and generations wait for them.
        """
        return any(
            not each.num_placed or num_tokens <= each.num_free_tokens for each in self._usable() or self.endpoints
        )

    def choose(
        self, context: Sequence[bytes], num_tokens: int, num_new: int, num_reserved: int,
        without: Collection[Endpoint] = (), model: str = "",
    ) -> Endpoint | None:  # fmt: skip
        """Returns which of the usable endpoints is likely to end a generation soonest.

        context: digests of the whole blocks of its `num_tokens` tokens.
        num_new: tokens to generate, at most.
        num_reserved: as `num_reserved_tokens`.
        model: name of the one that the endpoint must have; any if empty.
        """
        found = [each for each in self._usable(model) if each not in without]
        if len(found) < 2:
            return found[0] if found else None
        # One endpoint's for all: each measured its own while others may have been busy on its cores.
        forward_s, num_rounds = found[0].link.forward_times, min(num_new, EXPECTED_TOKENS)
        least_s = min((each.link.load.token_s for each in found if each.link.load.token_s), default=0.0)

        def cost(endpoint: Endpoint) -> tuple[int, float, int]:
            num_unknown = num_tokens - endpoint.known.num_blocks(context) * self.num_block_tokens
            num_others = endpoint.num_placed + endpoint.link.load.num_other_generations
            seconds = forward_s(num_unknown) + num_rounds * forward_s(num_others + 1)
            num_lacking = max(0, num_reserved - endpoint.num_free_tokens)
            return num_lacking, seconds * _slowness(endpoint.link.load.token_s, least_s), num_others

        return min(found, key=cost)

    @property
    def num_block_tokens(self) -> int:
        return max((each.link.num_block_tokens for each in self.endpoints), default=1)

    def _usable(self, model: str = "") -> list[Endpoint]:
        """Returns the open endpoints with the model; if there are none, the draining ones."""
        serving = [each for each in self.endpoints if each.is_serving and each.has(model)]
        return [each for each in serving if each.is_open] or serving

    async def _wait(self, timeout_s: float, is_over: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not is_over():
                    for each in self.endpoints:
                        each.link.want()
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Unavailable(self.absence) from None

    async def _follow(self) -> None:
        async for addresses in self._source.changes():
            self._set(addresses)

    def _set(self, addresses: Sequence[str]) -> None:
        known = {each.link.address: each for each in self.endpoints}
        for address in addresses:
            if address in known:
                known[address].is_leaving = False
                continue
            check_model_info = partial(self._check_model_info, address)
            link = Link(self.role, address, check_model_info, self._tls, self._on_change, self._translate)
            link.start()
            self.endpoints.append(Endpoint(link))
        for address, endpoint in known.items():
            if address not in addresses and not endpoint.is_leaving:
                log.info("the %s server at %s has left the list", self.role, address)
                endpoint.is_leaving = True
                self._spawn(self._let_go(endpoint))

    async def _let_go(self, endpoint: Endpoint) -> None:
        """Drops an endpoint that left the list, once its generations have ended. Those that have not in time migrate."""
        deadline_s = time.monotonic() + DRAIN_S
        while endpoint.num_placed and endpoint.link.is_up and time.monotonic() < deadline_s:
            await asyncio.sleep(0.1)
            if not endpoint.is_leaving:
                return
        if endpoint in self.endpoints:
            self.endpoints.remove(endpoint)
            await endpoint.link.stop()

    def _on_change(self) -> None:
        self._changed.set()
        self.on_change()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _slowness(token_s: float, least_s: float) -> float:
    """Returns how many times longer than the fastest an endpoint takes, in powers of SAME_SPEED; 1 if unknown: it is tried."""
    return SAME_SPEED ** int(math.log(token_s / least_s, SAME_SPEED)) if token_s else 1.0
