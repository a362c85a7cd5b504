"""A seed repeats its text, whatever is drafted and whoever runs beside it: unasked."""

import asyncio
from dataclasses import replace

import pytest

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftMode, Rule, SpeculationParams
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.services import Trio

PROMPT = [3, 14, 15, 9, 2, 6]
SEEDED = SamplingParams(max_tokens=40, temperature=1.0, seed=11, ignore_eos=True)
MODES = {
    "unasked": None,
    "plain": SpeculationParams(enabled=False),
    "model, 1": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1),
    "model, 5": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=5),
    "model, adaptive": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=Bounds(1, 8)),
    "n-gram": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "hybrid": SpeculationParams(drafter=Drafter.HYBRID, num_speculative_tokens=Bounds(1, 8)),
}


@pytest.fixture
async def client(unlike_trio: Trio):
    async with AsyncClient(unlike_trio.address) as client:
        yield client


async def test_a_seed_repeats_its_text_in_every_mode_alone_and_in_company(client: AsyncClient) -> None:
    alone = [(await client.complete(PROMPT, SEEDED, mode)).token_ids for mode in MODES.values()]
    together = await asyncio.gather(
        *(client.complete(PROMPT, SEEDED, mode) for mode in MODES.values() for _ in range(2))
    )
    assert {tuple(ids) for ids in (*alone, *(each.token_ids for each in together))} == {tuple(alone[0])}


async def test_under_rejection_a_seed_repeats_its_text_whatever_tokens_others_bring_to_the_drafts_head(
    host: Host,
) -> None:
    # int4, which one kernel multiplies for any number of rows.
    draft = (*UNLIKE_DRAFT, "--dtype", "bfloat16", "--quantization", "int4", "PACELINE_DRAFT_VOCAB_SIZE=8")
    rejection = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.REJECTION)
    prompts = [PROMPT, *([first, first + 1, 2] for first in range(8, 31))]
    async with AsyncClient(host.trio(UNLIKE_TARGET, draft).address) as client:
        alone = (await client.complete(PROMPT, SEEDED, rejection)).token_ids
        together = await asyncio.gather(*(client.complete(prompt, SEEDED, rejection) for prompt in prompts))
        greedy = replace(SEEDED, temperature=0.0)
        plain, drafted = [
            (await client.complete(PROMPT, greedy, mode)).token_ids for mode in (MODES["plain"], MODES["model, 5"])
        ]
    assert together[0].token_ids == alone
    assert drafted == plain


async def test_rejection_is_for_who_asks_for_it_or_for_what_needs_it(client: AsyncClient) -> None:
    assert (await client.describe()).defaults.rule is None
    for asked, rule in (
        (SpeculationParams(), Rule.MATCH),
        (SpeculationParams(rule=Rule.REJECTION), Rule.REJECTION),
        (SpeculationParams(lenience=0.5), Rule.REJECTION),
        (SpeculationParams(draft_mode=DraftMode.SAMPLED), Rule.REJECTION),
    ):
        assert asked.resolved_rule(SEEDED) is rule
