"""A draft that proposes all its tokens in one forward pass, through the real services."""

import itertools

import pytest

from paceline.client import AsyncClient, Completion
from paceline.engine.models.dummy import NUM_MASKS
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive, Rule, SpeculationParams
from tests.services import Trio
from tests.slices import slice_of

PROMPTS = ([3, 1, 4, 1, 5], [number * 7 % 31 + 1 for number in range(300)])
SAMPLINGS = {
    "greedy": SamplingParams(max_tokens=60, ignore_eos=True),
    "sampled": SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.8, seed=5),
    "penalized": SamplingParams(max_tokens=60, ignore_eos=True, repetition_penalty=1.3, frequency_penalty=0.2),
}
LENGTHS = [1, 3, NUM_MASKS + 1, 16, Bounds(0, 8), EntropyAdaptive(Bounds(1, 6))]
IN_SLICE = [("greedy", 3), ("sampled", 16), ("penalized", 3), ("greedy", Bounds(0, 8))]
PLAIN = SpeculationParams(enabled=False)


async def complete(
    trio: Trio, prompt: list[int], sampling: SamplingParams, *speculations: SpeculationParams
) -> list[Completion]:
    async with AsyncClient(trio.address) as client:
        return [await client.complete(prompt, sampling, each, trace=True) for each in speculations]


@pytest.mark.parametrize(
    ("name", "length"), slice_of(itertools.product(SAMPLINGS, LENGTHS), IN_SLICE.__contains__), ids=str
)
async def test_the_output_is_that_of_plain_decoding(parallel_trio: Trio, name: str, length: object) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=length)  # type: ignore[arg-type]
    for prompt in PROMPTS:
        drafted, plain = await complete(parallel_trio, prompt, SAMPLINGS[name], speculation, PLAIN)
        assert drafted.token_ids == plain.token_ids


async def test_it_proposes_one_token_more_than_it_knows_masks(parallel_trio: Trio) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=16)
    [done] = await complete(parallel_trio, PROMPTS[0], SAMPLINGS["greedy"], speculation)
    assert max(len(trace.proposed) for trace in done.traces) == NUM_MASKS + 1


async def test_a_seed_repeats_its_text_under_rejection(parallel_trio: Trio) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION)
    first, again = await complete(parallel_trio, PROMPTS[0], SAMPLINGS["sampled"], speculation, speculation)
    assert again.token_ids == first.token_ids
    assert sum(trace.num_accepted for trace in first.traces) > 0
