"""The draft that comes with Paceline: it serves by name, is accepted often, and changes no output."""

import pytest

from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.services import Trio

pytestmark = pytest.mark.slow

PLAIN = SpeculationParams(enabled=False)
DRAFTED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3)


async def test_it_is_accepted_often_and_changes_no_output(embedded_pair: Trio, prompts: list[str]) -> None:
    params = SamplingParams(max_tokens=40, ignore_eos=True)
    accepted = decided = 0
    async with AsyncClient(embedded_pair.address) as client:
        for prompt in prompts[:2]:
            plain = await client.complete(prompt, params, PLAIN)
            drafted = await client.complete(prompt, params, DRAFTED)
            assert drafted.token_ids == plain.token_ids
            assert drafted.finish is not None
            accepted += drafted.finish.speculation.accepted_per_position[0]
            decided += drafted.finish.speculation.proposed_per_position[0]
    assert decided > 30
    assert accepted / decided > 0.3


async def test_a_request_that_allows_only_tokens_it_does_not_know_is_answered_all_the_same(embedded_pair: Trio) -> None:
    """Its head knows a third of the vocabulary: the last ids are of the rarest words."""
    params = SamplingParams(max_tokens=12, ignore_eos=True, allowed_token_ids=tuple(range(49_000, 49_040)))
    async with AsyncClient(embedded_pair.address) as client:
        plain = await client.complete("Name a color.", params, PLAIN)
        drafted = await client.complete("Name a color.", params, DRAFTED)
    assert drafted.token_ids == plain.token_ids
    assert len(plain.token_ids) == 12
