"""Gets next tokens of hypotheses, which are forks of one sequence on each server.

Drafting follows Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", appendix A.4, with
u = w: the target verifies all candidates of gamma steps at once.
"""

import asyncio
import copy
import logging
import time
from collections.abc import Collection, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from coordinator.beams.hypotheses import Beams, NextTokens, Tokens
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.drafter import Resources
from coordinator.remote.branches import Branches, Scored, guess, score
from coordinator.remote.placement import Placement
from coordinator.remote.sequence import RemoteSequence
from coordinator.reports import NO_VERIFY_REPORT, VerifyReport
from coordinator.request import Request
from paceline.errors import PacelineError
from paceline.sampling_params import SamplingParams

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Verified:
    """Times are of the slowest command: all share a batch."""

    next_tokens: dict[Tokens, NextTokens]
    report: VerifyReport = NO_VERIFY_REPORT


class TargetBeams:
    def __init__(self, placement: Placement, request: Request, timeout_s: float) -> None:
        """`placement`: of all hypotheses, which share the prompt."""
        self._placement = placement
        self._prompt = request.prompt
        self._timeout_s = timeout_s
        self._branches = Branches(RemoteSequence(placement, request), len(request.prompt))

    async def verify(
        self, paths: Sequence[Tokens], num_decided: int, wanted: Collection[Tokens], num_next: int
    ) -> Verified:
        """Returns the top `num_next` tokens after each prefix of the wanted paths, from `num_decided` tokens on.

        `paths`: all paths that keep a sequence. Raises Unavailable after the timeout.
        """
        sequences = dict(zip(paths, self._branches.take(paths), strict=True))
        asked = [path for path in paths if path in wanted]
        scored: list[Scored] = await _gather(
            score(
                self._placement,
                sequences[path],
                [*self._prompt, *path],
                len(path) - num_decided,
                num_next,
                self._timeout_s,
            )
            for path in asked
        )
        known: dict[Tokens, NextTokens] = {
            path[: num_decided + index]: next_tokens
            for path, of_path in zip(asked, scored, strict=True)
            for index, next_tokens in enumerate(of_path.next_tokens)
        }
        report = VerifyReport(
            cached_tokens=max(each.cached_tokens for each in scored),
            compute_us=max(each.compute_us for each in scored),
            queued_us=max(each.queued_us for each in scored),
        )
        return Verified(known, report)

    def release(self) -> None:
        self._branches.release()
        self._placement.release()


@dataclass(slots=True)
class Drafted:
    # The draft model's name, if there is one.
    draft_model: str = ""
    levels: list[list[Tokens]] = field(default_factory=list)
    compute_us: int = 0
    queued_us: int = 0


class DraftBeams:
    """After an error the search continues without drafts."""

    def __init__(self, placement: Placement, request: Request, num_steps: int, deadline: DraftDeadline) -> None:
        # At temperature 1 the model reports its own probabilities.
        sampling = SamplingParams(temperature=1.0, seed=request.seed, ignore_eos=True)
        self._placement = placement
        self._branches = Branches(RemoteSequence(self._placement, request, sampling), len(request.prompt))
        self._deadline, self._prompt = deadline, request.prompt
        self._num_steps = num_steps
        self._is_available = True

    async def draft(self, beams: Beams) -> Drafted:
        drafted, searched = Drafted(self._placement.model), copy.copy(beams)
        while self._is_available and len(drafted.levels) < self._num_steps:
            if not self._placement.is_serving and not self._placement.migrate():
                break
            try:
                next_tokens = await self._ask([each.tokens for each in searched.live], searched.rules.num_next, drafted)
            except (PacelineError, TimeoutError) as error:
                log.info("beam search continues without drafts: %s", error or "the draft timed out")
                self._is_available = False
                break
            searched.step(next_tokens)
            if searched.is_over:
                break
            drafted.levels.append([each.tokens for each in searched.live])
        return drafted

    async def _ask(self, paths: list[Tokens], num_next: int, drafted: Drafted) -> list[NextTokens]:
        branches, contexts = self._branches.take(paths), [[*self._prompt, *path] for path in paths]
        pairs = list(zip(branches, contexts, strict=True))
        num_tokens = sum(len(context) - branch.length for branch, context in pairs)
        started_s = time.monotonic()
        async with asyncio.timeout(self._deadline.seconds(num_tokens)):
            scored = await _gather(guess(branch, context, num_next) for branch, context in pairs)
        self._deadline.learn(num_tokens, time.monotonic() - started_s)
        drafted.compute_us += max(each.compute_us for each in scored)
        drafted.queued_us += max(each.queued_us for each in scored)
        return [each.next_tokens[0] for each in scored]

    def release(self) -> None:
        self._branches.release()
        self._placement.release()


def make_draft_beams(resources: Resources, request: Request) -> DraftBeams | None:
    """Returns None unless the request asks for a fixed number of a draft model's tokens.

    Adaptive lengths draft no beams, which cost more than they save with the default draft (docs/speculation.md).
    """
    speculation = request.speculation
    length = speculation.num_speculative_tokens
    asks_model = speculation.enabled and speculation.drafter.asks_model
    if not asks_model or not isinstance(length, int) or length == 0:
        return None
    placement = resources.draft_placement(request)
    if placement is not None and placement.translation is not None:
        # Its beams would be of its own tokens.
        placement.release()
        return None
    return None if placement is None else DraftBeams(placement, request, length, resources.deadlines[placement.model])


async def _gather(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    tasks = [asyncio.create_task(each) for each in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        # Unlike gather, leaves no task running if one fails.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
