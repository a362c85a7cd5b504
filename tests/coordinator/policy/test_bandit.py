"""Bandits with speeds that are known."""

from collections import Counter

import pytest

from coordinator.policy.bandit import ENOUGH, RETRY, SHARE, Arm, Bandit

# The first round after a change of the arm does not count.
TRIED = ENOUGH + 1


class World:
    """Rounds of a bandit, one after the other."""

    def __init__(self) -> None:
        self.bandit = Bandit()
        self._now_s = 0.0
        self._num_all = 0

    def play(
        self,
        num_rounds: int,
        nobody: float,
        lookups: float,
        everybody: float,
        reading_s: float = 0.0,
        num_active: int = 8,
    ) -> Counter[Arm]:
        """In how many of so many rounds each arm was taken; its tokens a second beside seven others are given.

        `reading_s`: what the first 32 rounds of each stretch in which all draft take longer.
        """
        speeds = {Arm.NONE: nobody, Arm.LOOKUPS: lookups, Arm.ALL: everybody}
        taken: Counter[Arm] = Counter()
        for _ in range(num_rounds):
            arm = self.bandit.arm
            taken[arm] += 1
            self._num_all = self._num_all + 1 if arm is Arm.ALL else 0
            once_s = reading_s if 0 < self._num_all <= 32 else 0.0
            started_s, self._now_s = self._now_s, self._now_s + once_s + num_active / 8 / speeds[arm]
            self.bandit.learn(arm, num_active, 1, started_s, self._now_s, once_s)
        return taken


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ((100, 90, 80), Arm.NONE),
        ((90, 100, 80), Arm.LOOKUPS),
        ((80, 90, 100), Arm.ALL),
        # A little is chance.
        ((100, 104, 104), Arm.NONE),
        ((90, 100, 104), Arm.LOOKUPS),
    ],
)
def test_all_ways_are_measured_and_the_fastest_stays(speeds: tuple[float, float, float], best: Arm) -> None:
    world = World()
    taken = world.play(2000, *speeds)
    tried = {Arm.NONE: ENOUGH, Arm.LOOKUPS: TRIED, Arm.ALL: TRIED}
    assert taken == tried | {best: 2000 - sum(tried.values()) + tried[best]}


def test_who_lost_is_tried_again_seldom_and_may_win() -> None:
    world = World()
    world.play(2000, 100, 90, 80)
    # Each of the two that lost.
    assert world.play(RETRY, 100, 90, 80)[Arm.NONE] == RETRY - 2 * TRIED
    world.play(3 * RETRY, 100, 90, 120)
    assert world.bandit.arm is Arm.ALL


def test_trials_that_lose_much_come_so_seldom_that_they_cost_a_fixed_share_of_the_time() -> None:
    world = World()
    world.play(2000, 100, 90, 20)
    taken = world.play(20 * RETRY, 100, 90, 20)
    assert taken[Arm.LOOKUPS] > 15 * ENOUGH
    lost_s = taken[Arm.ALL] * (1 / 20 - 1 / 100)
    assert SHARE / 2 < lost_s / (taken[Arm.NONE] / 100) < SHARE


def test_what_later_rounds_share_makes_a_way_no_slower_but_its_trials_dearer() -> None:
    winner, loser = World(), World()
    winner.play(2000, 100, 90, 120, reading_s=1.0)
    assert winner.bandit.arm is Arm.ALL
    # The first bandit lost 32 s, which are 1 % of what 320,000 rounds take; others are tried again after 1 % of those.
    assert loser.play(50_000, 100, 90, 80, reading_s=1.0)[Arm.ALL] == TRIED


def test_ways_measured_beside_more_others_are_not_taken_for_slower_ones() -> None:
    world = World()
    world.play(2 * TRIED, 100, 120, 110, num_active=8)
    world.play(1000, 100, 120, 110, num_active=15)
    assert world.bandit.arm is Arm.LOOKUPS
    for num_active in (15, 8):
        assert world.play(1000, 100, 120, 110, num_active=num_active)[Arm.LOOKUPS] == 1000


def test_a_round_that_waited_for_rows_of_another_way_does_not_count() -> None:
    world = World()
    world.play(ENOUGH, 100, 90, 80)
    assert world.bandit.arm is Arm.LOOKUPS
    # Sixteen that nobody drafted for, behind the first forward with look-ups.
    for _ in range(16):
        world.bandit.learn(Arm.NONE, 8, 1, 0.639, 0.7)
    assert world.play(2000, 100, 90, 80)[Arm.LOOKUPS] == TRIED


def test_a_target_that_was_away_says_nothing_of_the_way_that_was_taken() -> None:
    world = World()
    world.play(2000, 80, 90, 200)
    assert world.bandit.arm is Arm.ALL
    # For a minute, in the round of each of four generations; then all is as before.
    world.play(4, 80, 90, 1 / 60)
    assert world.play(2000, 80, 90, 200)[Arm.ALL] > 1900


def test_a_round_counts_for_the_bandit_that_was_asked_and_not_beside_a_prompt() -> None:
    bandit = Bandit()
    assert bandit.counts(2, overlaps_a_prompt=False)
    assert [bandit.counts(2, overlaps_a_prompt=True) for _ in range(130)] == [False] * 128 + [True] * 2
    assert bandit.counts(2, overlaps_a_prompt=False)
    assert not bandit.counts(2, overlaps_a_prompt=True)
