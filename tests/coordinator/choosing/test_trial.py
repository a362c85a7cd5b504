"""Trials with speeds that are known."""

from collections import Counter

import pytest

from coordinator.choosing.trial import ENOUGH, RETRY, SHARE, Trial, Way


def play(
    trial: Trial, num_rounds: int, nobody: float, look_ups: float, everybody: float, reading_s: float = 0.0
) -> Counter[Way]:
    """In how many of so many rounds each way was taken; its tokens a second are given.

    `reading_s`: what the first 32 rounds of each stretch in which all draft take longer.
    """
    speeds = {Way.NOBODY: nobody, Way.LOOK_UPS: look_ups, Way.ALL: everybody}
    taken: Counter[Way] = Counter()
    num_all = 0
    for _ in range(num_rounds):
        way = trial.way
        taken[way] += 1
        num_all = num_all + 1 if way is Way.ALL else 0
        once_s = reading_s if 0 < num_all <= 32 else 0.0
        trial.learn(way, 1, once_s + 1 / speeds[way], once_s)
    return taken


@pytest.mark.parametrize(
    ("speeds", "best"),
    [
        ((100, 90, 80), Way.NOBODY),
        ((90, 100, 80), Way.LOOK_UPS),
        ((80, 90, 100), Way.ALL),
        # A little is chance.
        ((100, 101, 101), Way.NOBODY),
        ((90, 100, 101), Way.LOOK_UPS),
    ],
)
def test_all_ways_are_measured_and_the_fastest_stays(speeds: tuple[float, float, float], best: Way) -> None:
    taken = play(Trial(), 2000, *speeds)
    assert taken == dict.fromkeys(Way, ENOUGH) | {best: 2000 - 2 * ENOUGH}


def test_who_lost_is_tried_again_seldom_and_may_win() -> None:
    trial = Trial()
    play(trial, 2000, 100, 90, 80)
    # Each of the two that lost.
    assert play(trial, RETRY, 100, 90, 80)[Way.NOBODY] == RETRY - 2 * ENOUGH
    play(trial, 3 * RETRY, 100, 90, 120)
    assert trial.way is Way.ALL


def test_trials_that_lose_much_come_so_seldom_that_they_cost_a_fixed_share_of_the_time() -> None:
    trial = Trial()
    play(trial, 2000, 100, 90, 20)
    taken = play(trial, 20 * RETRY, 100, 90, 20)
    assert taken[Way.LOOK_UPS] > 15 * ENOUGH
    lost_s = taken[Way.ALL] * (1 / 20 - 1 / 100)
    assert SHARE / 2 < lost_s / (taken[Way.NOBODY] / 100) < SHARE


def test_what_later_rounds_share_makes_a_way_no_slower_but_its_trials_dearer() -> None:
    winner, loser = Trial(), Trial()
    play(winner, 2000, 100, 90, 120, reading_s=1.0)
    assert winner.way is Way.ALL
    # The first trial lost 32 s, which are 1 % of what 320,000 rounds take; of that a little is forgotten.
    assert play(loser, 200_000, 100, 90, 80, reading_s=1.0)[Way.ALL] == ENOUGH
