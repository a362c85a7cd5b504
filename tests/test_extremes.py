"""Parameters at the ends of their ranges, through real services: their generations end, and others are not affected."""

import asyncio

import pytest

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.bystander import undisturbed_bystander
from tests.services import Trio

PROMPT = [3, 14, 15, 92, 65, 35]
BYSTANDER = SamplingParams(max_tokens=60, temperature=0.7, seed=5, ignore_eos=True)
# Its tokens depend on prompt, parameters and seed alone.
MATCHED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH)
# What float32, in which parameters travel, has least and most of.
LEAST, MOST = 1.5e-45, 3.4e38
EXTREMES = {
    "penalty": {"repetition_penalty": 0.01, "top_k": 5},
    "penalty without top-k": {"repetition_penalty": 0.01},
    "largest penalty": {"repetition_penalty": 100.0, "presence_penalty": 2.0, "frequency_penalty": 2.0},
    "rewards": {"repetition_penalty": 0.01, "presence_penalty": -2.0, "frequency_penalty": -2.0, "top_p": 0.9},
    "biases": {"logit_bias": {0: 100.0, 1: -100.0}, "repetition_penalty": 0.01, "top_k": 5},
    "no temperature": {"temperature": LEAST, "top_k": 5},
    "all temperature": {"temperature": MOST, "top_k": 5, "banned_token_ids": (0, 511)},
    "all temperature without top-k": {"temperature": MOST, "banned_token_ids": (0, 511)},
    "top-p": {"top_p": LEAST},
    "min-p": {"min_p": LEAST},
    "top-p and top-k": {"top_p": LEAST, "top_k": 1, "temperature": MOST},
    "min-p of 1": {"min_p": 1.0, "logprobs": 20},
}


@pytest.mark.parametrize("name", EXTREMES)
async def test_an_extreme_generation_ends_and_a_bystander_goes_on(name: str, tiny_trio: Trio) -> None:
    sampling = SamplingParams(**{"temperature": 1.0, "max_tokens": 16, "seed": 7, "ignore_eos": True, **EXTREMES[name]})  # type: ignore[arg-type]
    beside = undisturbed_bystander(tiny_trio.address, PROMPT, BYSTANDER, MATCHED)
    async with beside, AsyncClient(tiny_trio.address) as client:
        # Far below the coordinator's target timeout.
        async with asyncio.timeout(30):
            extremes = await asyncio.gather(*(client.complete(PROMPT, sampling) for _ in range(2)))
    assert extremes[0].token_ids == extremes[1].token_ids
    assert len(extremes[0].token_ids) == 16
    assert not set(extremes[0].token_ids) & set(sampling.banned_token_ids)
