"""How forward passes' times follow the work, from wrong beginnings."""

import random

import numpy as np
import pytest

from paceline.engine.scheduling.learned_times import KNOWN_FOR_S, KNOWN_STEPS, LearnedTimes

SIZES, WORKED = (1, 2, 4, 8, 16), (1, 3, 5)


def true_s(num_tokens: float) -> float:
    return 0.01 + 0.001 * num_tokens


def work(
    times: LearnedTimes, num_steps: int, coin: random.Random, slowness: float = 1.0, sizes: tuple[int, ...] = WORKED
) -> None:
    for _ in range(num_steps):
        size = coin.choice(sizes)
        # Now and then another program takes the processor.
        pause_s = 0.5 if coin.random() < 0.01 else 0.0
        times.count_step(slowness * true_s(size) * coin.uniform(0.9, 1.1) + pause_s, size)


def seconds_of(times: LearnedTimes, num_tokens: int) -> float:
    return float(np.interp(num_tokens, *zip(*times.points, strict=True)))


def learned(begin: dict[int, float]) -> LearnedTimes:
    times = LearnedTimes()
    times.begin([(size, begin.get(size, 1.0) * true_s(size)) for size in SIZES])
    return times


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0])
def test_a_wrong_beginning_is_forgotten(factor: float) -> None:
    times, coin = learned(dict.fromkeys(SIZES, factor)), random.Random(1)
    work(times, 400, coin)
    for size in WORKED:
        assert seconds_of(times, size) == pytest.approx(true_s(size), rel=0.1)


def test_one_size_that_was_disturbed_is_mended_by_its_own_steps() -> None:
    times = learned({4: 3.0, 8: 3.0, 16: 3.0})
    work(times, 600, random.Random(2))
    for size in WORKED:
        assert seconds_of(times, size) == pytest.approx(true_s(size), rel=0.1)


def test_a_processor_that_becomes_slower_and_faster_is_followed_for_all_sizes() -> None:
    times, coin = learned({}), random.Random(3)
    for slowness in (2.0, 1.0):
        work(times, 150, coin, slowness)
        for size, seconds in times.points:
            assert seconds == pytest.approx(slowness * true_s(size), rel=0.25), size


def test_long_work_of_one_size_leaves_the_others_where_they_are() -> None:
    times = learned({})
    work(times, 20_000, random.Random(4), sizes=(1,))
    for size, seconds in times.points:
        assert seconds == pytest.approx(true_s(size), rel=0.1), size


def test_seconds_never_fall_with_more_tokens() -> None:
    times = learned({})
    work(times, 50, random.Random(5), slowness=3.0, sizes=(4,))
    seconds = [each for _, each in times.points]
    assert seconds == sorted(seconds)


def test_batches_larger_than_any_that_was_measured_teach_too() -> None:
    times = learned(dict.fromkeys(SIZES, 3.0))
    for _ in range(200):
        times.count_step(true_s(32), 32)
    assert dict(times.points) == pytest.approx({size: true_s(size) for size in SIZES}, rel=0.05)
    assert times.is_recent


@pytest.mark.parametrize("begin_s", [0.05, 0.0])
def test_batches_larger_than_any_that_was_measured_leave_right_times_where_they_are(begin_s: float) -> None:
    """Whether reading the weights takes most of a forward pass, or its tokens do."""
    times, sizes = LearnedTimes(), (1, 8, 17, 32)
    right = [(size, begin_s + 0.001 * size) for size in sizes]
    times.begin(right)
    for _ in range(300):
        times.count_step(begin_s + 0.001 * 64, 64)
    assert times.points == [(size, pytest.approx(seconds, rel=0.01)) for size, seconds in right]


@pytest.mark.parametrize("size", [1, 16])
def test_a_size_that_was_never_worked_with_follows_those_that_were(size: int) -> None:
    times = learned(dict.fromkeys(SIZES, 4.0))
    for slowness in (1.0, 2.0):
        work(times, 300, random.Random(6), slowness, sizes=(size,))
        expected = {each: slowness * true_s(each) for each in SIZES}
        assert dict(times.points) == pytest.approx(expected, rel=0.1)


def test_what_is_known_of_a_size_outweighs_guesses_of_larger_ones() -> None:
    times = learned({2: 0.2, 4: 0.2, 8: 0.2, 16: 0.2})
    work(times, 40, random.Random(7), sizes=(1,))
    times._times[0, 1:] *= 0.3
    assert times.points[0][1] == pytest.approx(true_s(1), rel=0.1)


def test_nothing_measured_is_nothing_learned() -> None:
    times = LearnedTimes()
    times.count_step(1.0, 1)
    assert times.points == []
    times.begin([])
    times.count_step(1.0, 1)
    assert times.points == []


def test_what_was_learned_long_ago_is_not_recent() -> None:
    now_s = 100.0
    times = LearnedTimes(lambda: now_s)
    times.begin([(1, 0.1), (2, 0.2)])
    for _ in range(KNOWN_STEPS):
        assert not times.is_recent
        times.count_step(0.1, 1)
    assert times.is_recent
    now_s += KNOWN_FOR_S + 1
    assert not times.is_recent
