"""Drafts of beams: a beam search by the draft model, from the live hypotheses on.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", appendix A.4: the draft model
searches for gamma steps with u >= w hypotheses, and the target checks all of its candidates at once. A step is accepted
where the target's w best are among the draft's u. Here u = w and what is accepted is decided in `search`, by the
target's own log-probabilities. The "more elaborate procedure" that the paper mentions is not part of it.
"""

import asyncio
import copy
import logging
import time
from typing import Protocol

from coordinator.beams.hypotheses import Beams, NextTokens, Tokens
from coordinator.beams.together import all_of
from coordinator.context import Request
from coordinator.drafting.deadline import DraftDeadline
from coordinator.remote.branches import Branches, guess
from coordinator.remote.link import Link
from coordinator.remote.sequence import RemoteSequence
from paceline.errors import PacelineError
from paceline.sampling import SamplingParams

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
