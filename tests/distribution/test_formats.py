"""Under `rejection` and a format, answers are distributed as without drafts."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest

from paceline.client import AsyncClient
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.services import Trio

PROMPT = [{"role": "user", "content": "Say yes or no."}]
# Many may end here or go on: an end is drafted as often as any other token.
WANTED = OutputFormat(regex="(yes|no|maybe|never|always|perhaps)[ ,!?]{0,2}")
SAMPLING = SamplingParams(max_tokens=8, temperature=2.0)
PLAIN = SpeculationParams(enabled=False)
DRAFTED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.REJECTION)
NUM_ANSWERS = 600


@pytest.mark.campaign
async def test_answers_are_distributed_as_without_drafts(embedded_pair: Trio) -> None:
    async with AsyncClient(embedded_pair.address) as client:

        async def count(speculation: SpeculationParams, first_seed: int) -> Counter[str]:
            found: Counter[str] = Counter()
            for start in range(0, NUM_ANSWERS, 60):
                seeds = range(first_seed + start, first_seed + start + 60)
                answers = (
                    client.complete(PROMPT, replace(SAMPLING, seed=seed), speculation, format=WANTED) for seed in seeds
                )
                found.update(each.text for each in await asyncio.gather(*answers))
            return found

        plain, drafted = await count(PLAIN, 0), await count(DRAFTED, 10**6)
    kinds = [text for text in plain | drafted if plain[text] + drafted[text] >= 10]
    assert len(kinds) > 5
    # Each difference over its standard deviation, squared: a chi-squared of as many degrees of freedom.
    statistic = sum((plain[text] - drafted[text]) ** 2 / (plain[text] + drafted[text]) for text in kinds)
    assert statistic < len(kinds) + 4.5 * (2 * len(kinds)) ** 0.5, (statistic, plain, drafted)
