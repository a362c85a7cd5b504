"""A slice of `make identity`."""

import pytest

from paceline.prompts import read_prompts
from tests.identity import MODES, OWN_PROMPTS, run_campaign
from tests.services import Trio


@pytest.mark.parametrize("mode", MODES)
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(embedded_pair: Trio, mode: str) -> None:
    prompts = [record.text for record in read_prompts("prompts", OWN_PROMPTS)][:2]
    campaign = await run_campaign(embedded_pair, mode, prompts, mode, tokens=16, alone_count=1)
    assert campaign.compared.total() == 2 * 11 + 10
    assert campaign.differing.total() == 0, campaign.differing
