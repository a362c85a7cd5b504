"""A measured line: noise, outliers and changes."""

import random

import pytest

from coordinator.policy.measurements import Line


def test_one_long_time_is_chance_and_several_are_a_change() -> None:
    line = Line(guessed_slope=0.1)
    for _ in range(100):
        line.learn(4, 0.01)
    line.learn(4, 0.1)
    assert line(4) < 0.012
    for _ in range(40):
        line.learn(4, 0.1)
    assert line(4) > 0.08


def test_outliers_do_not_bend_it() -> None:
    line, coin = Line(guessed_slope=0.0), random.Random(5)
    for index in range(400):
        k = coin.randint(0, 8)
        line.learn(k, 100.0 if index % 50 == 49 else 0.02 + 0.005 * k)
    assert line(0) == pytest.approx(0.02, abs=0.006)
    assert line.slope == pytest.approx(0.005, abs=0.001)


def test_a_slope_outlives_a_time_without_variation_and_a_change_of_level() -> None:
    line, coin = Line(guessed_slope=0.5), random.Random(6)
    for _ in range(300):
        k = coin.randint(0, 8)
        line.learn(k, 0.02 + 0.001 * k)
    for _ in range(1000):
        line.learn(0, 0.05)
    assert line(0) == pytest.approx(0.05, rel=0.01)
    assert line.slope == pytest.approx(0.001, rel=0.3)


def test_nothing_is_known_before_the_first_time() -> None:
    line = Line(guessed_slope=0.5)
    assert (line.is_known, line(3)) == (False, 0)
    line.learn(0, 2.0)
    assert (line(0), line.slope) == (2.0, 1.0)
