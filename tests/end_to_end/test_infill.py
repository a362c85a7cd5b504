"""The text between two others: the same with and without drafts, and it ends with any token of the format."""

from dataclasses import replace

import pytest

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.infill_prompt import Infill
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.fill_in import QWEN, make_backend
from tests.services import Trio

ASK = Infill("def f(x):\n    return ", "\n", (("g.py", "y = 1\n"),), "x +")
IDS = {name: make_backend(QWEN).token_to_id(name) for name in QWEN}
VARIANTS = {
    "off": SpeculationParams(enabled=False),
    "n-gram": SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4),
    "model": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "default": SpeculationParams(),
}


@pytest.mark.parametrize("end", QWEN)
@pytest.mark.parametrize("variant", VARIANTS)
async def test_a_middle_ends_with_any_token_of_the_format(fill_in_trio: Trio, variant: str, end: str) -> None:
    # The likeliest token by far, once it may come: both servers ban it before.
    ending = SamplingParams(max_tokens=12, min_tokens=5, logit_bias={IDS[end]: 100.0})
    async with AsyncClient(fill_in_trio.address) as client:
        done = await client.complete(ASK, ending, VARIANTS[variant])
        plain = await client.complete(ASK, ending, VARIANTS["off"])
        endless = await client.complete(ASK, replace(ending, ignore_eos=True), VARIANTS[variant])
    assert done.finish is not None
    assert endless.finish is not None
    assert (done.finish.reason, len(done.token_ids), done.token_ids[-1]) == ("stop", 6, IDS[end])
    assert done.token_ids == plain.token_ids
    assert end not in done.text
    assert endless.finish.reason == "length"


@pytest.mark.parametrize(
    "sampling", [SamplingParams(max_tokens=60), SamplingParams(max_tokens=60, temperature=1.0, seed=5)]
)
async def test_drafts_change_no_middle(fill_in_trio: Trio, sampling: SamplingParams) -> None:
    async with AsyncClient(fill_in_trio.address) as client:
        found = [(await client.complete(ASK, sampling, each)).token_ids for each in VARIANTS.values()]
    assert found[1:] == found[:1] * (len(VARIANTS) - 1)


async def test_the_prompt_is_that_of_tokenize(fill_in_trio: Trio) -> None:
    async with AsyncClient(fill_in_trio.address) as client:
        ids = await client.tokenize(ASK)
        middle = await client.complete(ASK, SamplingParams(max_tokens=20))
        raw = await client.complete(ids, SamplingParams(max_tokens=20))
        # What only reads the prompt reads the same.
        warm = await client.complete(ASK, SamplingParams(max_tokens=0))
    assert middle.token_ids == raw.token_ids
    assert middle.finish is not None
    assert warm.finish is not None
    assert middle.finish.prompt_tokens == warm.finish.prompt_tokens == len(ids)


async def test_a_model_without_the_format_refuses(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address) as client:
        for call in (client.complete(ASK), client.tokenize(ASK)):
            with pytest.raises(InvalidArgument, match="infill is not supported") as caught:
                await call
            assert caught.value.field == "infill"
