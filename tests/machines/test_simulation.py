"""Simulated users see what theory says if nobody waits, and wait if there are too many of them."""

from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.machines.simulation import (
    NOISE,
    Deployment,
    Load,
    Outcome,
    Prices,
    best,
    deployments,
    simulate,
)
from paceline.theory import speedup

PAIR, PLAIN = Deployment(1, 1, is_paired=True), Deployment(1, 0)
# A forward pass of one token takes 4 ms, a draft step 0.8 ms, and context nothing.
ALONE = Load(1, k=3, target=Prices(3.8, 0.2, 0.0), draft=Prices(0.8, 0.0, 0.0), rpc_ms=0.6)
FORWARD_MS, DRAFT_COST, VERIFY_COST, TRIP = 4.0, 0.2, 0.05, 0.15


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.machines.simulation.MEASURED", 200)
    monkeypatch.setattr("benchmarks.machines.simulation.WARM_UP_S", 15.0)


def expected_speed(alpha: float, k: int, rpc_cost: float) -> float:
    return speedup(alpha, k, DRAFT_COST, rpc_cost, VERIFY_COST) / FORWARD_MS * 1e3


@pytest.mark.parametrize("deployment", [PAIR, Deployment(1, 1)], ids=str)
@pytest.mark.parametrize(("alpha", "tolerance"), [(0.0, 1e-9), (0.8, 0.02), (1.0, 1e-9)])
def test_one_user_has_the_speed_of_the_theorem(deployment: Deployment, alpha: float, tolerance: float) -> None:
    speed = simulate(deployment, replace(ALONE, alpha=alpha)).speed
    assert speed == pytest.approx(expected_speed(alpha, 3, 2 * TRIP), rel=tolerance)


def test_one_user_without_drafts_waits_for_one_server_a_token() -> None:
    outcome = simulate(PLAIN, ALONE)
    assert (outcome.speed, outcome.slow_speed) == pytest.approx((expected_speed(0.8, 0, TRIP),) * 2)


def test_first_tokens_wait_only_for_what_is_not_cached() -> None:
    # A question of 60 tokens: the conversation before it is cached.
    assert simulate(PLAIN, ALONE).first_ms == pytest.approx(0.6 + 3.8 + 60 * 0.2)


def test_context_that_is_read_takes_time() -> None:
    long = replace(ALONE, target=replace(ALONE.target, cached=0.001))
    # At least the system prompt's 800 tokens, at most 6,000 and an answer.
    lost_ms = 1e3 / simulate(PLAIN, long).speed - 1e3 / simulate(PLAIN, ALONE).speed
    assert 0.8 < lost_ms < 7


@pytest.mark.parametrize("deployment", [Deployment(2, 0), Deployment(2, 2, True), Deployment(1, 1)], ids=str)
def test_twice_the_users_are_never_faster(deployment: Deployment) -> None:
    outcomes = [simulate(deployment, Load(num_users)) for num_users in (50, 100, 200, 400, 800)]
    for few, many in pairwise(outcomes):
        assert many.speed <= few.speed * (1 + NOISE)
    assert outcomes[-1].speed < outcomes[0].speed / 2


def test_too_few_drafts_are_worse_than_none() -> None:
    plain, few, pairs = (
        simulate(each, Load(4000)).speed for each in (Deployment(10, 0), Deployment(8, 2), Deployment(10, 10, True))
    )
    assert few < plain * (1 - NOISE) < plain * (1 + NOISE) < pairs


def test_users_queue_for_drafts() -> None:
    one, five, load = Deployment(9, 1), Deployment(5, 5), Load(1500)
    assert simulate(one, Load(50)).speed == pytest.approx(simulate(five, Load(50)).speed, rel=NOISE)
    speed = simulate(one, load).speed
    assert speed < simulate(five, load).speed / 2
    # Not the targets: they are as fast as they need to be.
    assert simulate(one, replace(load, target=load.target.scaled(0.5))).speed < speed * 1.1
    assert simulate(one, replace(load, draft=load.draft.scaled(0.5))).speed > speed * 1.5


def test_a_pairs_target_and_draft_wait_for_each_other() -> None:
    load = Load(200)
    assert simulate(Deployment(1, 1, True), load).speed < simulate(Deployment(1, 1), load).speed * (1 - NOISE)


def test_caches_that_are_too_small_for_the_conversations_delay_first_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = simulate(Deployment(2, 0), Load(100))
    monkeypatch.setattr("benchmarks.machines.simulation.OWN_CACHES", (20_000, 20_000))
    assert simulate(Deployment(2, 0), Load(100)).first_ms > kept.first_ms + 20


def test_a_seed_repeats_a_simulation() -> None:
    first, again, other = (simulate(PLAIN, Load(50), seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(("num_machines", "num_splits"), [(1, 0), (2, 1), (10, 9), (64, 9)])
def test_deployments_use_all_machines_in_different_ways(num_machines: int, num_splits: int) -> None:
    plain, pairs, *splits = deployments(num_machines)
    assert (plain, pairs) == (Deployment(num_machines, 0), Deployment(num_machines, num_machines, True))
    assert len({each.num_drafts for each in splits}) == len(splits) == num_splits
    for each in splits:
        assert each.num_targets + each.num_drafts == num_machines
        assert min(each.num_targets, each.num_drafts) >= 1


@pytest.mark.parametrize(
    ("speeds", "chosen"),
    [
        ((100, 200, 150, 208), 1),  # pairs, as noise is no reason to divide machines
        ((100, 200, 150, 220), 3),
        ((100, 200, 219, 220), 2),  # the sooner first token
        ((97, 100, 60, 101), 0),
        ((100, 90, 60, 70), 0),
    ],
)
def test_the_best_is_the_simplest_that_is_fast(speeds: tuple[float, ...], chosen: int) -> None:
    outcomes = {
        each: Outcome(speed, speed, 5.0, 10.0 + each.num_drafts)
        for each, speed in zip(deployments(3), speeds, strict=True)
    }
    assert best(outcomes) == deployments(3)[chosen]
