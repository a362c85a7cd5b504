"""A slice of `make identity`."""

from collections.abc import Iterator

import pytest

from paceline.client import AsyncClient
from paceline.prompts import read_prompts
from tests.identity import MODES, OWN_PROMPTS, run_campaign, start_pair
from tests.services import Trio

PROMPTS = [record.text for record in read_prompts("prompts", OWN_PROMPTS)][:2]


@pytest.fixture(scope="module")
def int8_cache_pair() -> Iterator[Trio]:
    """Both servers keep keys and values in int8; prefixes are found again, and what was rejected is truncated."""
    with start_pair("bfloat16", "stepwise", "--kv-cache-dtype", "int8", "--check-integrity") as pair:
        yield pair


@pytest.mark.parametrize("mode", MODES)
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(embedded_pair: Trio, mode: str) -> None:
    await check_slice(embedded_pair, mode)


async def test_output_is_the_same_with_an_int8_cache(int8_cache_pair: Trio) -> None:
    async with AsyncClient(int8_cache_pair.address) as client:
        deployment = await client.describe()
    assert deployment.draft is not None
    assert [model.kv_cache_dtype for model in (deployment.target, deployment.draft)] == ["int8", "int8"]
    await check_slice(int8_cache_pair, "greedy")


async def check_slice(pair: Trio, mode: str) -> None:
    campaign = await run_campaign(pair, mode, PROMPTS, mode, tokens=16, alone_count=1)
    assert campaign.compared.total() == 2 * 13 + 12
    assert campaign.differing.total() == 0, campaign.differing
