"""Penalties, bias, token lists and n samples through the real services, against plain numpy over transformers' logits.

Draft and target apply the controls each for itself, drafts included: a draft server that
forgot them would cost speed, a target that did would change the output.
"""

import asyncio
import collections
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chi2

from paceline.client import AsyncClient, Completion
from paceline.noise import derive_seed
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams
from tests.end_to_end.tiny_oracle import adjusted, adjusted_after, model_logits, oracle_ids
from tests.services import Trio, free_and_total_blocks, wait_until_free
from tests.slices import slice_of

pytestmark = pytest.mark.slow

TARGET = "tiny-32-a"
PROMPT = [3, 1, 4, 1, 5]
MAX_TOKENS = 32
PLAIN = SpeculationParams(enabled=False)
GREEDY_WAYS = {
    "k = 1": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1),
    "k = 4": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "k = 4 by match": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH),
    "n-gram": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM),
    "hybrid": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.HYBRID),
}
PLAIN_MATCH = SpeculationParams(enabled=False, rule=Rule.MATCH)
MATCH_WAYS = {
    "coupled, k = 1": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=1, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
    ),
    "coupled, k = 4": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
    ),
    "drawn greedily": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.GREEDY
    ),
    "n-gram": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM, rule=Rule.MATCH),
}
ALLOWED = (1, 4, 7, 11, 15, 18, 20, 27, 30)
CONTROLS = {
    "repetition": {"repetition_penalty": 1.3},
    "repetition rewarded": {"repetition_penalty": 0.8},
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.6},
    "bias": {"logit_bias": {7: 2.5, 12: 3.0, 30: 2.0, 3: -8.0}},
    "allowed": {"allowed_token_ids": ALLOWED},
    "banned": {"banned_token_ids": tuple(range(0, 32, 3))},
    # Where a few tokens take turns, what the drafts of the same round were decides at once.
    "frequency among few": {"frequency_penalty": 1.5, "allowed_token_ids": (7, 12, 20, 30)},
    "repetition among biased": {"repetition_penalty": 4.0, "logit_bias": {10: 5.0, 13: 5.0, 21: 5.0}},
    "all": {
        "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {7: 2.5, 5: 40.0},
        "allowed_token_ids": (*ALLOWED, 5, 6), "banned_token_ids": (5, 30, 31),
    },
}  # fmt: skip
EVERY_CONTROL = pytest.mark.parametrize("name", CONTROLS)
SOME_CONTROLS = pytest.mark.parametrize(
    "name", slice_of(CONTROLS, ("all", "repetition", "frequency among few", "allowed").__contains__)
)


def controlled(name: str, **more: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": MAX_TOKENS, "ignore_eos": True, **CONTROLS[name], **more})


async def complete(trio: Trio, sampling: SamplingParams, *speculations: SpeculationParams) -> list[Completion]:
    """All at once."""
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(PROMPT, sampling, each) for each in speculations))


@pytest.mark.parametrize("rule", Rule, ids=str)
async def test_a_top_p_of_0_takes_the_likeliest_token_whatever_the_seed(unlike_trio: Trio, rule: Rule) -> None:
    greedy = SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True)
    ways = [replace(way, rule=rule) for way in (PLAIN, *GREEDY_WAYS.values())]
    [likeliest] = await complete(unlike_trio, greedy, PLAIN)
    drawn = await complete(unlike_trio, replace(greedy, temperature=1.5, top_p=0.0, seed=1), *ways)
    assert [each.token_ids for each in drawn] == [likeliest.token_ids] * len(ways)


@EVERY_CONTROL
async def test_greedy_ids_under_controls_are_the_oracles_with_and_without_speculation(
    name: str, unlike_trio: Trio
) -> None:
    expected = oracle_ids(TARGET, PROMPT, controlled(name))
    assert expected != oracle_ids(TARGET, PROMPT, SamplingParams(max_tokens=MAX_TOKENS)), "a control without effect"
    plain, *others = await complete(unlike_trio, controlled(name), PLAIN, *GREEDY_WAYS.values())
    assert plain.token_ids == expected
    for way, other in zip(GREEDY_WAYS, others, strict=True):
        assert other.token_ids == expected, way
    assert any("R" in other.origins for other in others), "no draft was ever rejected"
    assert any("A" in other.origins for other in others), "no draft was ever accepted"


@SOME_CONTROLS
async def test_ids_sampled_by_match_under_controls_are_the_oracles_with_and_without_speculation(
    name: str, unlike_trio: Trio
) -> None:
    sampling = controlled(name, temperature=0.8, seed=11)
    expected = oracle_ids(TARGET, PROMPT, sampling)
    plain, *others = await complete(unlike_trio, sampling, PLAIN_MATCH, *MATCH_WAYS.values())
    assert plain.token_ids == expected
    for way, other in zip(MATCH_WAYS, others, strict=True):
        assert other.token_ids == expected, way
    assert "A" in others[1].origins
    assert "R" in others[1].origins


@SOME_CONTROLS
async def test_draft_that_is_the_target_applies_the_same_controls_to_its_own_drafts(name: str, tiny_trio: Trio) -> None:
    """Forgotten on one side, or counted over another context there, they would cost acceptance."""
    k, rounds = 4, 10
    more = {"max_tokens": 1 + rounds * (k + 1)}
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=k, rule=Rule.MATCH)
    for sampling in (controlled(name, **more), controlled(name, temperature=0.8, seed=3, **more)):
        [completion] = await complete(tiny_trio, sampling, speculation)
        assert completion.origins == "T" + ("A" * k + "B") * rounds


# Enough that the likeliest tokens change all the time.
HEAVY = {"repetition_penalty": 1.4, "presence_penalty": 1.5, "frequency_penalty": 2.0, "logit_bias": {9: 5.0}}
BANNED = (2, 9, 16, 31)
LAWFUL = SamplingParams(max_tokens=3, temperature=1.0, ignore_eos=True, n=64, **HEAVY)


async def sample_many(trio: Trio, sampling: SamplingParams, num_requests: int) -> np.ndarray:
    """[num_samples, max_tokens]"""
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.REJECTION)
    async with AsyncClient(trio.address) as client:
        samples = []
        for seed in range(num_requests):
            samples += await client.complete_all(PROMPT, SamplingParams(**fields(sampling, seed=seed)), speculation)
    return np.array([sample.token_ids for sample in samples])


def fields(sampling: SamplingParams, **more: object) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in sampling.__slots__} | more


@pytest.mark.parametrize(
    "lists",
    slice_of([{"banned_token_ids": BANNED}, {"allowed_token_ids": ALLOWED}], lambda lists: "banned_token_ids" in lists),
    ids=str,
)
async def test_rejection_never_emits_a_token_outside_the_lists(lists: dict[str, object], unlike_trio: Trio) -> None:
    sampling = SamplingParams(**fields(LAWFUL, max_tokens=24, n=32, **lists))
    tokens = await sample_many(unlike_trio, sampling, 2)
    lawful = set(ALLOWED) if "allowed_token_ids" in lists else set(range(32)) - set(BANNED)
    assert set(tokens.flatten().tolist()) == lawful, "each of these comes at times, and no other"


async def test_tokens_drawn_by_rejection_under_penalties_follow_the_penalized_distribution(unlike_trio: Trio) -> None:
    """Also behind a draft: what counts there are the tokens that came, not those that were dropped."""
    tokens = await sample_many(unlike_trio, LAWFUL, 16)
    # The distribution of the third token given the first two, summed over the pairs that came.
    pairs = collections.Counter(map(tuple, tokens[:, :2].tolist()))
    expected = np.zeros(32)
    for pair, count in pairs.items():
        expected += count * softmax(adjusted_after(TARGET, LAWFUL, PROMPT, list(pair)))
    assert (expected >= 1).all()
    counts = np.bincount(tokens[:, 2], minlength=32)
    # Given their pairs, counts vary less than those of one distribution, so chi-square's tail is an upper bound.
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, 31)
    # Without the first two tokens' own penalties they would be far off: this test can fail.
    forgetful = sum(n * softmax(forgetful_logits(list(pair))) for pair, n in pairs.items())
    assert ((counts - forgetful) ** 2 / forgetful).sum() > chi2.isf(1e-6, 31)


def forgetful_logits(output: list[int]) -> np.ndarray:
    """Penalties for the prompt's tokens alone: [vocab_size]."""
    return adjusted(model_logits(TARGET, PROMPT + output)[-1], LAWFUL, PROMPT, [])


SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, seed=77, ignore_eos=True)
SAMPLING_WAYS = {
    "plain": PLAIN,
    "rejection": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4),
    "coupled": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH),
}


@pytest.mark.parametrize("way", SAMPLING_WAYS)
async def test_samples_differ_and_each_repeats_alone_by_its_reported_seed(way: str, unlike_trio: Trio) -> None:
    speculation = SAMPLING_WAYS[way]
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, SamplingParams(**fields(SAMPLED, n=5)), speculation)
        seeds = [sample.finish.seed for sample in samples]
        alone = [
            await client.complete(PROMPT, SamplingParams(**fields(SAMPLED, seed=seed)), speculation) for seed in seeds
        ]
    assert seeds == [derive_seed(77, index) for index in range(5)]
    assert seeds[0] == 77
    assert len({tuple(sample.token_ids) for sample in samples}) == 5
    assert [sample.token_ids for sample in samples] == [each.token_ids for each in alone]
    assert [sample.text for sample in samples] == [each.text for each in alone]


async def test_samples_of_an_unseeded_request_repeat_by_their_reported_seeds(unlike_trio: Trio) -> None:
    speculation = SAMPLING_WAYS["rejection"]
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, SamplingParams(**fields(SAMPLED, seed=None, n=3)), speculation)
        for sample in samples:
            again = SamplingParams(**fields(SAMPLED, seed=sample.finish.seed))
            assert (await client.complete(PROMPT, again, speculation)).token_ids == sample.token_ids
    assert len({tuple(sample.token_ids) for sample in samples}) == 3


async def test_greedy_samples_are_all_alike(unlike_trio: Trio) -> None:
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, controlled("all", n=2), GREEDY_WAYS["k = 4"])
    assert [sample.token_ids for sample in samples] == [oracle_ids(TARGET, PROMPT, controlled("all"))] * 2
    assert samples[0].text == samples[1].text != ""
    assert all(sample.finish.reason == "length" for sample in samples)


async def test_samples_penalize_each_its_own_output_alone(unlike_trio: Trio) -> None:
    sampling = controlled("frequency", temperature=0.8, seed=5, n=4)
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, sampling, MATCH_WAYS["coupled, k = 4"])
    for sample in samples:
        own = controlled("frequency", temperature=0.8, seed=sample.finish.seed)
        assert sample.token_ids == oracle_ids(TARGET, PROMPT, own)


async def test_cancelling_a_request_of_four_samples_frees_all_its_blocks(unlike_trio: Trio) -> None:
    sampling = SamplingParams(max_tokens=400, temperature=0.8, ignore_eos=True, n=4)
    begun: set[int] = set()
    async with AsyncClient(unlike_trio.address) as client:
        pieces = client.stream(PROMPT, sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4))
        async for chunk in pieces:
            assert chunk.finish is None, "too late to cancel"
            begun.add(chunk.index)
            if len(begun) == 4:
                break
        held = [await free_and_total_blocks(service) for service in (unlike_trio.draft, unlike_trio.target)]
        await pieces.aclose()
    assert held[1][0] <= held[1][1] - 4, "nothing was held"
    await wait_until_free(unlike_trio.draft)
    await wait_until_free(unlike_trio.target)
