"""What the target says of hypotheses: the likeliest next tokens behind each, from a branch for each."""

import asyncio
import copy
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from coordinator.beams.hypotheses import Beams, NextTokens, Tokens
from coordinator.context import Request
from coordinator.drafters.model import DraftDeadline
from coordinator.remote.branches import Branches, Scored, guess, score
from coordinator.remote.link import Link
from coordinator.remote.sequence import RemoteSequence
from paceline.errors import PacelineError
from paceline.sampling import SamplingParams

T = TypeVar("T")


async def all_of(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All their results, in order. Raises what the first to fail raises, once the others are cancelled and over."""
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Verified:
    """Next tokens by hypothesis, and what a round took: of the slowest command, for all share a batch."""

    next_tokens: dict[Tokens, NextTokens]
    # Tokens of the context that the target's cache held already.
    cached_tokens: int
    computed_us: int
    queued_us: int


class TargetBeams:
    """One search's branches on the target."""

    def __init__(self, link: Link, request: Request, patience_s: float) -> None:
        self._link = link
        self._prompt = request.prompt
        self._patience_s = patience_s
        self._branches = Branches(RemoteSequence(link, request), len(request.prompt))

    async def verify(
        self, paths: Sequence[Tokens], num_decided: int, wanted: Collection[Tokens], num_next: int
    ) -> Verified:
        """The `num_next` likeliest tokens behind each part of the `wanted` paths that has at least `num_decided` tokens.

        `paths`: all that keep a branch. Raises Unavailable if the target is gone for longer than the patience.
        """
        sequences = dict(zip(paths, self._branches.take(paths), strict=True))
        asked = [path for path in paths if path in wanted]
        scored: list[Scored] = await all_of(
            score(
                self._link, sequences[path], [*self._prompt, *path], len(path) - num_decided, num_next, self._patience_s
            )
            for path in asked
        )
        known: dict[Tokens, NextTokens] = {
            path[: num_decided + index]: next_tokens
            for path, of_path in zip(asked, scored, strict=True)
            for index, next_tokens in enumerate(of_path.next_tokens)
        }
        return Verified(
            known,
            cached_tokens=max(each.cached_tokens for each in scored),
            computed_us=max(each.computed_us for each in scored),
            queued_us=max(each.queued_us for each in scored),
        )

    def release(self) -> None:
        self._branches.release()


log = logging.getLogger(__name__)


class BeamDrafter(Protocol):
    """One search's drafter, as the loop uses it."""

    # Microseconds that the newest drafts took.
    computed_us: int
    queued_us: int

    async def draft(self, beams: Beams) -> list[list[Tokens]]:
        """Hypotheses that may live after one step, two steps, …; empty for none."""
        ...

    def release(self) -> None:
        """The search is over."""
        ...


class NoBeamDrafter:
    """Never drafts: plain beam search."""

    computed_us = queued_us = 0

    async def draft(self, beams: Beams) -> list[list[Tokens]]:
        return []

    def release(self) -> None:
        pass


class ModelBeamDrafter:
    """Searches with the draft server's model. After a fault of the draft server the search goes on without drafts."""

    def __init__(self, link: Link, request: Request, deadline: DraftDeadline, num_steps: int) -> None:
        """Drafts `num_steps` steps in each round."""
        # At temperature 1 it tells how likely its tokens are.
        sampling = SamplingParams(temperature=1.0, seed=request.seed, ignore_eos=True)
        self._branches = Branches(RemoteSequence(link, request, sampling), len(request.prompt))
        self._link, self._deadline, self._prompt = link, deadline, request.prompt
        self._num_steps = num_steps
        self._is_well = True
        self.computed_us = self.queued_us = 0

    async def draft(self, beams: Beams) -> list[list[Tokens]]:
        self.computed_us = self.queued_us = 0
        levels: list[list[Tokens]] = []
        searched = copy.copy(beams)
        while self._is_well and len(levels) < self._num_steps:
            if not self._link.is_up or self._link.is_silent:
                break
            try:
                next_tokens = await self._ask([each.tokens for each in searched.live], searched.rules.num_next)
            except (PacelineError, TimeoutError) as error:
                log.info("beams go on without drafts: %s", error or "no draft came in time")
                self._is_well = False
                break
            searched.step(next_tokens)
            if searched.is_over:
                break
            levels.append([each.tokens for each in searched.live])
        return levels

    async def _ask(self, paths: list[Tokens], num_next: int) -> list[NextTokens]:
        branches, contexts = self._branches.take(paths), [[*self._prompt, *path] for path in paths]
        pairs = list(zip(branches, contexts, strict=True))
        num_tokens = sum(len(context) - branch.length for branch, context in pairs)
        started_s = time.monotonic()
        async with asyncio.timeout(self._deadline.seconds(num_tokens)):
            scored = await all_of(guess(branch, context, num_next) for branch, context in pairs)
        self._deadline.learn(num_tokens, time.monotonic() - started_s)
        self.computed_us += max(each.computed_us for each in scored)
        self.queued_us += max(each.queued_us for each in scored)
        return [each.next_tokens[0] for each in scored]

    def release(self) -> None:
        self._branches.release()
