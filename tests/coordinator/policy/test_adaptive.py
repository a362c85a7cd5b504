"""The policy in worlds of known acceptance and times."""

import itertools
import random

import pytest

from coordinator.acceptance import Origin, Outcome, VerifyResult
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from paceline.theory import best_k, speedup
from tests.coordinator.contexts import make_context
from tests.coordinator.policy.world import Crowd, World, begin, make_policy, told
from tests.slices import slice_of


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("c", [0.02, 0.2, 0.8])
@pytest.mark.parametrize("read_s", [0.0, 0.0001])
async def test_speed_comes_close_to_that_of_the_best_fixed_k(alpha: float, c: float, read_s: float) -> None:
    world, coin = World(alpha, draft_s=c * 0.02, read_s=read_s), random.Random(1)
    await world.play(make_policy(world), 200, coin)
    tokens, seconds = await world.play(make_policy(world), 400, coin)
    best = speedup(alpha, best_k(alpha, c, longest=8), c) / world.verify_s
    # A tenth for probing, and for the luck of 400 rounds.
    assert tokens / seconds > 0.9 * best


@pytest.mark.parametrize("read_s", [0.0, 0.00003])
async def test_a_request_that_fell_to_zero_comes_back(read_s: float) -> None:
    world, coin, context = World(alpha=0.05, draft_s=0.016, read_s=read_s), random.Random(2), begin([0])
    policy = make_policy(world)
    await world.play(policy, 300, coin, context)
    assert len(await policy.propose(context)) == 0
    world.alpha, world.draft_s = 0.97, 0.002
    await world.play(policy, 3000, coin, context)
    assert len(await policy.propose(context)) > 0


async def test_another_request_finds_out_that_drafting_pays_again() -> None:
    world, coin = World(alpha=0.5, draft_s=0.02, read_s=0.0001), random.Random(7)
    await world.play(make_policy(world), 200, coin)
    world.draft_s = 0.002
    for _ in range(40):
        context, policy = begin([0] * 100), make_policy(world)
        await world.play(policy, 40, coin, context)
    assert len(await policy.propose(context)) > 0


async def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    world, coin = World(alpha=0.8, draft_s=0.002, read_s=0.001), random.Random(8)
    # Until costs are known, prompts are read.
    for _ in range(3):
        await world.play(make_policy(world), 50, coin, begin([0] * 100))
    assert len(await make_policy(world).propose(begin([0] * 2_000, max_tokens=50))) == 0
    assert len(await make_policy(world).propose(begin([0] * 3_000, max_tokens=10_000))) == 0
    assert len(await make_policy(world).propose(begin([0] * 100, max_tokens=50))) > 0
    long, policy = begin([0] * 2_000, max_tokens=10_000), make_policy(world)
    tokens, _ = await world.play(policy, 400, coin, long)
    # An answer that goes on is likely to go on.
    assert tokens > 800
    assert len(await policy.propose(long)) > 0


async def test_probing_takes_little_time() -> None:
    world, coin = World(alpha=0.3, draft_s=0.02, read_s=0.001), random.Random(9)
    await world.play(make_policy(world), 200, coin)
    tokens, seconds = 0, 0.0
    for _ in range(60):
        num_tokens, took_s = await world.play(make_policy(world), 80, coin, begin([0] * 300))
        tokens, seconds = tokens + num_tokens, seconds + took_s
    assert tokens / seconds > 0.97 / world.verify_s


ALPHAS = [0.3, 0.4, 0.45, 0.5, 0.5, 0.55, 0.6, 0.7]


async def test_sequences_in_one_forward_count_what_all_their_drafts_cost() -> None:
    crowd = Crowd(ALPHAS, random.Random(10))
    await crowd.play(100)
    assert await crowd.play(400) > 0.97 * crowd.plain
    # One at a time drafts pay: others' are not there any more.
    crowd.leave_alone(0.9)
    assert await crowd.play(1000) > 1.5 * crowd.plain


async def test_what_drafts_take_between_rounds_counts_too() -> None:
    crowd = Crowd([0.7] * 8, random.Random(14))
    crowd.each_draft_s, crowd.gap_each_draft_s = 0.0, 0.003
    await crowd.play(100)
    assert await crowd.play(400) > 0.95 * crowd.plain


async def test_what_drafting_takes_in_a_crowd_says_nothing_of_one_alone() -> None:
    world, coin = World(alpha=0.8, draft_s=0.2, verify_s=0.2), random.Random(13)
    # Eight tokens take ten times as long as one.
    world.experience.costs._target_times = lambda: told(0.02, 0.18 / 7)
    world.draft_times = lambda draft: told(0.002, 0.198 / 7)  # type: ignore[method-assign]
    for other in range(7):
        world.active.join(other)
        world.active.has_read(other)
    await world.play(make_policy(world), 300, coin)
    for other in range(7):
        world.active.leave(other)
    world.experience.costs._target_times = lambda: told(0.02, 0.0)
    world.draft_s, world.verify_s = 0.002, 0.02
    tokens, seconds = await world.play(make_policy(world), 60, coin)
    assert tokens / seconds > 1.5 / world.verify_s


async def test_a_crowd_that_fell_to_zero_tries_again_together() -> None:
    crowd = Crowd(ALPHAS, random.Random(11))
    await crowd.play(300)
    assert await crowd.drafts() == [0] * len(ALPHAS)
    crowd.each_draft_s = 0.0002
    num_stretches = 0
    while await crowd.play(100) <= 1.2 * crowd.plain:
        num_stretches += 1
        assert num_stretches < 100


async def test_rounds_beside_a_prompt_are_no_measure_of_others() -> None:
    crowd = Crowd(ALPHAS, random.Random(12))
    await crowd.play(300)
    expected_s, prompt = crowd.experience.costs.rounds.plain_s, object()
    crowd.active.join(prompt)
    crowd.step_s = 0.2
    await crowd.play(20)
    crowd.active.leave(prompt)
    assert crowd.experience.costs.rounds.plain_s == pytest.approx(expected_s, rel=0.05)


@pytest.mark.parametrize("alpha", [0.05, 0.99])
async def test_bounds_hold(alpha: float) -> None:
    world, coin, context = World(alpha, draft_s=0.016), random.Random(3), begin([0])
    policy = make_policy(world, Bounds(2, 3))
    for _ in range(100):
        await world.play(policy, 1, coin, context)
        assert len(await policy.propose(context)) in (2, 3)


async def test_requests_share_what_rounds_cost() -> None:
    world, coin = World(alpha=0.1, draft_s=0.02), random.Random(4)
    await world.play(make_policy(world), 200, coin)
    policy, context = make_policy(world), begin([0])
    # There may be a probe, of two rounds.
    assert [len(await policy.propose(context)) for _ in range(3)][-1] == 0


async def test_the_prompts_round_teaches_nothing() -> None:
    """It takes as long as the prompt does."""
    world = World()
    policy, context = make_policy(world), make_context([1, 2, 3])
    proposal = await policy.propose(context)
    policy.learn(Round(proposal, VerifyResult([0]), Outcome([0], 0, Origin.TARGET), 0.0, 0.0, 9.0))
    assert world.experience.costs.rounds.plain_s == world.verify_s
    assert (len(proposal), proposal.report.reason) == (0, "the prompt's round")


def a_text(coin: random.Random, repeats: float) -> list[int]:
    """Stretches of 25 tokens: this share of them copies earlier ones, the others are of new tokens."""
    text: list[int] = []
    while len(text) < 3000:
        if text and coin.random() < repeats:
            start = coin.randrange(max(1, len(text) - 25))
            text += text[start : start + 25]
        else:
            text += [coin.randrange(50_000) for _ in range(25)]
    return text


@pytest.mark.parametrize(
    ("repeats", "alpha"),
    slice_of(
        itertools.product([0.0, 0.3, 0.9], [0.1, 0.6, 0.9]),
        lambda pair: pair in [(0.0, 0.9), (0.3, 0.6), (0.9, 0.1), (0.9, 0.9)],
    ),
)
async def test_two_sources_are_no_worse_than_the_better_of_them(repeats: float, alpha: float) -> None:
    text = a_text(random.Random(5), repeats)
    speeds = {}
    for sources in ("model", "ngram", "ngram model"):
        world, coin = World(alpha, draft_s=0.003, row_s=0.0012, text=text), random.Random(6)
        for _ in range(2):
            tokens, seconds = await world.play(make_policy(world, sources=sources), 99_000, coin)
        speeds[sources] = tokens / seconds
    assert speeds["ngram model"] > 0.97 * max(speeds.values())
    assert speeds["ngram model"] > 0.98 / 0.02, "plain decoding"


async def test_look_ups_learn_from_tokens_that_they_did_not_propose() -> None:
    """Matches that mislead are left alone, without a single probe; when the text begins to repeat itself, they return."""
    coin = random.Random(7)
    misleading = [coin.randrange(20) for _ in range(1500)]
    text = [*misleading, *([*range(100, 130)] * 20)]
    world = World(row_s=0.004, text=text)
    policy, context = make_policy(world, sources="ngram"), begin([1])
    await world.play(policy, 1000, coin, context)
    before = context.num_generated
    tokens, _ = await world.play(policy, 200, coin, context)
    assert (before, tokens) == (pytest.approx(1000, abs=60), pytest.approx(200, abs=10))
    await world.play(policy, len(misleading) - context.num_generated + 60, coin, context)
    tokens, seconds = await world.play(policy, 99_000, coin, context)
    assert tokens / seconds > 2 / world.verify_s


async def test_what_reading_takes_in_a_crowd_says_nothing_of_one_alone() -> None:
    """There each waits while the draft model reads the prompts of the others."""
    world, coin = World(alpha=0.8, draft_s=0.002, read_s=0.0002), random.Random(14)
    others = [object() for _ in range(15)]
    for other in others:
        world.active.join(other)
        world.active.has_read(other)
    world.read_s *= 16
    for _ in range(16):
        await world.play(make_policy(world, Bounds(2, 4)), 20, coin, begin([0] * 1000))
    world.read_s /= 16
    for other in others:
        world.active.leave(other)
    tokens, seconds = 0, 0.0
    for _ in range(5):
        num_tokens, took_s = await world.play(make_policy(world), 100, coin, begin([0] * 1000))
        tokens, seconds = tokens + num_tokens, seconds + took_s
    assert tokens / seconds > 1.5 / world.verify_s


async def test_where_prompts_are_always_read_ways_are_tried_all_the_same() -> None:
    crowd = Crowd([0.8] * 3, random.Random(15))
    crowd.each_draft_s = 0.0002
    crowd.active.join("always another prompt")
    await crowd.play(1000)
    assert await crowd.play(1000) > 2 * crowd.plain
