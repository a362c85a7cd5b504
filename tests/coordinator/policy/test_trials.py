"""What it costs to try a draft model that loses, and whom: savings pay for it, and nobody reads more for it than they do."""

import random

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.policy.costs import Trial
from coordinator.policy.experience import FIRST_SAVINGS, TRIAL_SHARE, Savings
from coordinator.policy.source import NO_PLAN
from coordinator.reports import VerifyReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from tests.coordinator.policy.world import Crowd, World, begin, make_policy


@pytest.mark.parametrize("size", [2, 4, 8, 16])
async def test_a_crowd_loses_little_by_trials(size: int) -> None:
    crowd = Crowd([0.1] * size, random.Random(size))
    await crowd.play(200)
    assert await crowd.play(2000) > 0.985 * crowd.plain


async def test_trials_of_one_alone_lose_no_more_than_was_saved() -> None:
    world, coin, context = World(alpha=0.05, draft_s=0.01, noise=0.0), random.Random(1), begin([0])
    policy = make_policy(world)
    await world.play(policy, 300, coin, context)
    began_s, num_before = world.now_s, len(context)
    await world.play(policy, 5000, coin, context)
    num_tokens = len(context) - num_before
    lost = (world.now_s - began_s) / world.verify_s - num_tokens
    assert 0 < lost < TRIAL_SHARE * num_tokens + FIRST_SAVINGS


def test_a_trial_begins_once_its_likely_loss_is_saved_and_pays_what_it_lost() -> None:
    savings = Savings(choices=4.0)
    assert savings.affords(4.0, 30.0)
    savings.spend(20.0)
    # What it lost beyond that is saved first.
    assert not savings.affords(4.0, 30.0)
    savings.save(int(20 / TRIAL_SHARE))
    assert savings.affords(4.0, 30.0)


def test_savings_pay_for_two_trials_at_most() -> None:
    savings = Savings()
    savings.save(1_000_000)
    assert savings.affords(20.0, 20.0)
    assert savings.choices == 40.0
    # A pause is limited to what the whole trial may lose.
    savings.spend(1e9)
    assert savings.choices == 20.0
    # What a lucky round gains pays for nothing.
    savings.spend(-5.0)
    assert savings.choices == 20.0
    # One that has to read a long prompt does not keep others from shorter ones.
    assert not savings.affords(1000.0, 1000.0)
    assert savings.affords(4.0, 4.0)
    assert savings.choices == FIRST_SAVINGS


async def test_a_long_prompt_is_not_read_for_a_trial_that_a_short_one_began() -> None:
    world = World(alpha=0.5, draft_s=0.004, read_s=0.001)
    costs, policy = world.experience.costs, make_policy(world)
    costs.level.num_plain = 100
    costs.decide(gains=False, trial=Trial(policy._sources[0].key, gain=0.0, reading_s=0.05))
    assert len(await make_policy(world).propose(begin([0] * 2000))) == 0
    assert len(await make_policy(world).propose(begin([0] * 20))) > 0


@pytest.mark.parametrize("tried", ["model", "another"])
async def test_a_round_that_waits_for_another_generation_s_trial_pays_too(tried: str) -> None:
    world = World()
    policy, costs = make_policy(world), world.experience.costs
    world.active.join(policy)
    [source] = policy._sources
    costs.decide(gains=False, trial=Trial(source.key if tried == "model" else tried, gain=0.0, reading_s=0.0))
    savings = source._savings
    assert savings.affords(0.0, 100.0)
    outcome = Outcome([0], 0, Origin.BONUS)
    waited = Round(Proposal([]), VerifyResult([0]), outcome, 0.0, 0.0, 1.0)
    source.count(waited, NO_PLAN, speed=1 / world.verify_s, seconds=world.verify_s + 0.1)
    paid = FIRST_SAVINGS + TRIAL_SHARE - savings.choices
    assert paid == pytest.approx(0.1 / world.verify_s if tried == "model" else 0.0)


async def test_bounds_hold_in_a_trial_of_another_source() -> None:
    world = World(alpha=0.5)
    world.experience.costs.decide(gains=False, trial=Trial("another", gain=0.0, reading_s=0.0))
    assert len(await make_policy(world, Bounds(4, 8)).propose(begin([0]))) >= 4


async def test_what_others_make_a_target_compute_is_learned() -> None:
    """Another coordinator's generations are in the same forward pass, of which the server tells what few tokens take."""
    world, policy, context = World(alpha=0.0), make_policy(World()), begin([0])
    costs = world.experience.costs
    for _ in range(100):
        proposal = await policy.propose(context)
        now_s, report = world.now_s, VerifyReport(compute_us=60_000)
        costs.learn(
            Round(proposal, VerifyResult([0], report=report), Outcome([0], 0, Origin.TARGET), now_s, now_s, now_s + 0.061),
            0.061, None, 0, is_like_others=True, num_unfed=1,
        )  # fmt: skip
    assert costs.rounds.plain_s == pytest.approx(0.061, rel=0.01)
    # Forward times tell 20 ms, and that more tokens take no longer.
    assert costs.rounds.verify_s(4) == pytest.approx(0.061, rel=0.01)
