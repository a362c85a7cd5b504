"""Runs cells of the matrix, one after the other."""

import asyncio
import contextlib
import enum
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.faults.cells import Cell
from tests.faults.deployment import Clients, Deployment, deployed
from tests.faults.faults import Scene
from tests.faults.loads import Asked, Follower, GrpcFollower, HttpFollower, Undisturbed, words_of
from tests.faults.phases import Striker

# So many trials to make a fault fall in its phase.
MOST_ATTEMPTS = 4
# Longer than a stop of 60 s and a replay take, or two starts of a server on a busy machine.
MOST_S = 240.0
# Tokens of a generation that is under way.
UNDER_WAY_TOKENS = 8
WITH_DRAFTS = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)


class Verdict(enum.StrEnum):
    """Of a cell."""

    PASSED = "passed"
    FAILED = "FAILED"
    # The fault never fell in its phase: nothing was tested.
    NOT_IN_PHASE = "not in phase"


@dataclass(frozen=True, slots=True)
class Report:
    """What came of a cell."""

    cell: Cell
    verdict: Verdict
    seconds: float
    why: str = ""

    @property
    def line(self) -> str:
        return f"{self.verdict:12s}  {self.cell.name:42s} {self.seconds:6.1f} s  {self.why}".rstrip()


@dataclass(slots=True)
class Campaign:
    """Over one deployment, which a failed cell spoils: then `is_spoilt`."""

    deployment: Deployment
    clients: Clients
    undisturbed: Undisturbed
    is_spoilt: bool = False
    _num_runs: int = 0

    async def run(self, cell: Cell) -> Report:
        started_s = time.monotonic()
        verdict, why = Verdict.NOT_IN_PHASE, ""
        try:
            await self.undisturbed.find(self.clients.grpc, self._asked(cell))
            for attempt in range(MOST_ATTEMPTS):
                async with asyncio.timeout(MOST_S):
                    has_struck = await self._disturb(cell, attempt)
                    await self._check_afterwards(cell)
                if has_struck:
                    verdict = Verdict.PASSED
                    break
        except Exception as error:
            verdict, why = Verdict.FAILED, f"{type(error).__name__}: {str(error)[:2000]}"
            self.is_spoilt = True
        return Report(cell, verdict, time.monotonic() - started_s, why)

    async def _disturb(self, cell: Cell, attempt: int) -> bool:
        """Whether the fault fell in its phase. Raises AssertionError where the outputs are not the undisturbed ones."""
        self._num_runs += 1
        followers = self._followers(cell, f"run {self._num_runs}")
        scene = Scene(self.deployment, self.clients.impatient, cell.end)
        proxy = self.deployment.proxies[cell.watched]
        striker = Striker(cell.phase, proxy, lambda: cell.fault.strike(scene), attempt)
        if cell.phase.is_in_first_round:
            striking = asyncio.create_task(striker.run())
            await asyncio.sleep(0)
        scene.following = [asyncio.create_task(each.run()) for each in followers]
        try:
            if not cell.phase.is_in_first_round:
                await _until_under_way(scene, followers)
                striking = asyncio.create_task(striker.run())
            over = asyncio.create_task(scene.until_over())
            await asyncio.wait((striking, over), return_when=asyncio.FIRST_COMPLETED)
            over.cancel()
            striking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await striking
            if striker.has_struck.is_set():
                await cell.fault.mend(scene)
            await asyncio.gather(*scene.following)
        finally:
            for task in scene.following:
                task.cancel()
            await asyncio.gather(*scene.following, return_exceptions=True)
        for each in followers:
            _compare(each, self.undisturbed.of(each.asked))
        return striker.has_struck.is_set() and not proxy.has_to_forge

    def _followers(self, cell: Cell, salt: str) -> list[Follower]:
        if cell.is_over_http:
            return [HttpFollower(self.clients.http, asked, salt) for asked in self._asked(cell)]
        return [GrpcFollower(self.clients.grpc, asked, salt) for asked in self._asked(cell)]

    def _asked(self, cell: Cell) -> list[Asked]:
        brevity = self.deployment.pair.brevity
        return [replace(each, max_tokens=each.max_tokens // brevity) for each in cell.asked]

    async def _check_afterwards(self, cell: Cell) -> None:
        """Caches are empty and sound, and the draft model drafts again."""
        asked = self._asked(cell)[0]
        for _ in range(200):
            sampling = SamplingParams(20, temperature=asked.sampling.temperature, seed=asked.number, ignore_eos=True)
            completion = await self.clients.grpc.complete(asked.prompt, sampling, WITH_DRAFTS)
            words = words_of(completion.text)
            assert words == self.undisturbed.of(asked)[: len(words)], "other tokens after the fault"
            assert completion.finish is not None
            if completion.finish.timing.draft_ms > 0:
                break
            await asyncio.sleep(0.1)
        else:
            raise AssertionError("the draft server is back, and nothing is drafted")
        await self.deployment.until_idle()


async def _until_under_way(scene: Scene, followers: list[Follower]) -> None:
    while not all(len(each.words) >= UNDER_WAY_TOKENS for each in followers):
        if scene.is_over:
            return
        await asyncio.sleep(0.005)


def _compare(follower: Follower, expected: list[str]) -> None:
    words = follower.words
    if words == expected:
        return
    same = next((at for at, pair in enumerate(zip(words, expected, strict=False)) if pair[0] != pair[1]), len(words))
    raise AssertionError(
        f"generation {follower.asked.number} ({follower.asked.drafting[1] or 'default'}): {len(words)} tokens of "
        f"{len(expected)}, the first {same} as without the fault; then {words[same : same + 3]}, "
        f"not {expected[same : same + 3]}"
    )


async def run_cells(cells: Iterable[Cell], pair: str = "tiny") -> AsyncIterator[Report]:
    """Reports as they come. A cell that fails does not spoil the next: it gets a new deployment."""
    left = list(cells)
    undisturbed = Undisturbed()
    while left:
        with tempfile.TemporaryDirectory(prefix="paceline-faults-") as folder:
            async with contextlib.AsyncExitStack() as stack:
                campaign = Campaign(*await stack.enter_async_context(deployed(Path(folder), pair)), undisturbed)
                while left and not campaign.is_spoilt:
                    yield await campaign.run(left.pop(0))
