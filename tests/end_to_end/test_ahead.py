"""Drafting ahead through the real services: early drafts hit and miss, and no token and no block of a cache depends on them."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, SpeculationParams
from tests.conftest import PARALLEL_DRAFT, TINY, UNLIKE_DRAFT, UNLIKE_TARGET
from tests.services import Trio, free_port, start_trio, wait_until_free

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two servers need a core each"),
]

CHECKED = ("--check-integrity",)
# Target and draft: alike but for rounding, unlike, and with all drafts from one forward pass.
PAIRS = {
    "alike": (TINY, (*TINY, "--quantization", "int8")),
    "unlike": ((*UNLIKE_TARGET, *CHECKED), (*UNLIKE_DRAFT, *CHECKED)),
    "parallel": ((*UNLIKE_TARGET, *CHECKED), (*PARALLEL_DRAFT, *CHECKED)),
}
LENGTHS = [1, 2, 5, Bounds(0, 8)]
SAMPLINGS = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    *(SamplingParams(max_tokens=40, ignore_eos=True, temperature=0.8, seed=seed) for seed in range(2)),
]


class Apart:
    """Servers that share no core."""

    def __init__(self, trio: Trio, client: AsyncClient, metrics: str) -> None:
        self.trio, self.client, self._metrics = trio, client, metrics

    async def ahead_stats(self) -> tuple[float, float]:
        """Returns how many were hits and misses."""
        async with httpx2.AsyncClient() as http:
            lines = (await http.get(self._metrics)).text.splitlines()
        figures = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        hits, misses = (figures[f'paceline_drafts_ahead_total{{outcome="{each}"}}'] for each in ("hit", "miss"))
        return float(hits), float(misses)

    async def answers(self, *lengths: int | Bounds) -> list[list[int]]:
        """Returns the tokens of each sampling with each of the lengths in turn; without, of plain decoding."""
        asked = [
            SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=each) for each in lengths
        ] or [SpeculationParams(enabled=False)]  # fmt: skip
        return [
            (await self.client.complete([11, 12, 13, 14], sampling, each)).token_ids
            for each in asked
            for sampling in SAMPLINGS
        ]

    async def wait_until_free(self) -> None:
        for each in (self.trio.draft, self.trio.target):
            await wait_until_free(each)


@pytest.fixture(scope="module", params=PAIRS)
def trio_and_metrics(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Trio, str]]:
    metrics, folder = f"127.0.0.1:{free_port()}", Path(tmp_path_factory.mktemp("apart"))
    with start_trio(folder, *PAIRS[request.param], coordinator=("--metrics", metrics), is_apart=True) as trio:
        yield trio, f"http://{metrics}/metrics"


@pytest.fixture
async def apart(trio_and_metrics: tuple[Trio, str]) -> AsyncIterator[Apart]:
    trio, metrics = trio_and_metrics
    async with AsyncClient(trio.address) as client:
        yield Apart(trio, client, metrics)


async def test_no_token_depends_on_early_drafts(apart: Apart) -> None:
    plain = await apart.answers()
    assert await apart.answers(*LENGTHS) == plain * len(LENGTHS)
    together = await asyncio.gather(*(apart.answers(length) for length in LENGTHS))
    assert together == [plain] * len(LENGTHS)
    hits, misses = await apart.ahead_stats()
    assert min(hits, misses) > 0
    await apart.wait_until_free()


async def test_a_round_that_is_cut_off_frees_what_was_drafted_ahead(apart: Apart) -> None:
    sampling = SamplingParams(max_tokens=400, ignore_eos=True)
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
    for num_pieces in range(1, 12):
        pieces = apart.client.stream([11, 12, 13, num_pieces], sampling, speculation)
        for _ in range(num_pieces):
            await anext(pieces)
        await pieces.aclose()
    await apart.wait_until_free()
