"""A slice of `make identity`; quantized models and an int8 cache: test_quantized.py."""

import pytest

from paceline.prompts import read_prompts
from tests.identity import MODES, OWN_PROMPTS, VARIANTS, run_campaign
from tests.services import Trio

PROMPTS = [record.text for record in read_prompts("prompts", OWN_PROMPTS)][:2]


@pytest.mark.parametrize("mode", MODES)
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(embedded_pair: Trio, mode: str) -> None:
    """Each variant alone in one mode: without a batch a token costs a whole forward pass."""
    alone_count = int(mode == "greedy")
    campaign = await run_campaign(embedded_pair, mode, PROMPTS, mode, tokens=12, alone_count=alone_count)
    assert campaign.compared.total() == len(PROMPTS) * len(VARIANTS) + alone_count * (len(VARIANTS) - 1)
    assert campaign.differing.total() == 0, campaign.differing
