"""The pair of `make pair`, where it is here: two files as published, formats and a vocabulary that the embedded pair lacks."""

from collections.abc import Iterator

import pytest

from paceline.catalog.known_models import MODELS, PublishedFile
from paceline.catalog.pull import is_here
from paceline.client import AsyncClient
from paceline.prompts import read_prompts
from tests.identity import MODES, OWN_PROMPTS, VARIANTS, run_campaign, start_pair
from tests.services import Trio

FILES = [each for each in MODELS.values() if isinstance(each, PublishedFile)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(is_here, FILES)), reason="the files are not here: `make pair` fetches them"),
]
PROMPTS = [record.text for record in read_prompts("prompts", OWN_PROMPTS)][:1]
# As published with the model: its default system message, and its tokenizer's ids.
CHAT_TEXT = (
    "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
)
CHAT_BEGINS = [151644, 8948, 198, 2610, 525, 1207, 16948, 11, 3465, 553, 54364, 14817, 13, 1446, 525, 264, 10950, 17847]


@pytest.fixture(scope="module")
def pair() -> Iterator[Trio]:
    with start_pair("bfloat16", "qwen") as trio:
        yield trio


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", [MODES[0], *(pytest.param(mode, marks=pytest.mark.campaign) for mode in MODES[1:])])
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(pair: Trio, mode: str) -> None:
    campaign = await run_campaign(pair, mode, PROMPTS, mode, tokens=16, alone_count=1)
    assert campaign.compared.total() == len(PROMPTS) * len(VARIANTS) + len(VARIANTS) - 1
    assert campaign.differing.total() == 0, campaign.differing


async def test_a_chat_has_the_published_template_and_ids(pair: Trio) -> None:
    async with AsyncClient(pair.address) as client:
        ids = await client.tokenize("Hi")
        assert ids[: len(CHAT_BEGINS)] == CHAT_BEGINS
        assert b"".join((await client.detokenize(ids)).pieces) == CHAT_TEXT.encode()
