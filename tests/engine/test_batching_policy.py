"""When a worker waits for a fuller batch, and when it does not."""

import time

import pytest

from paceline.engine.scheduling.batching_policy import TRANSIT, Absence, Gathering


def away(usual_s: float, gone_s: float) -> Absence:
    """A sequence that is usually away for `usual_s` and left `gone_s` ago."""
    absence, now_s = Absence(), time.perf_counter()
    absence.leave(now_s - 10)
    absence.arrive(now_s - 10 + usual_s)
    absence.leave(now_s - gone_s)
    return absence


def gathering(fixed_s: float = 1.0, waits: bool = True) -> Gathering:
    made = Gathering(waits)
    made.count_step(fixed_s, num_rows=1)
    return made


def wait_s(policy: Gathering, num_ready: int, absences: list[Absence]) -> float:
    return policy.wait_s(time.perf_counter(), num_ready, num_ready, absences)


# Times are far longer than the clock's noise: a step takes a second.
def test_many_that_are_about_to_come_are_waited_for() -> None:
    assert 0.05 < wait_s(gathering(), 1, [away(0.6, 0.5)] * 7) < 0.2


def test_many_do_not_wait_for_one() -> None:
    assert wait_s(gathering(), 7, [away(0.9, 0.5)]) == 0


def test_a_wait_that_costs_more_than_it_saves_is_not_begun() -> None:
    assert wait_s(gathering(), 4, [away(1.1, 0.5)] * 4) == 0


def test_no_wait_is_longer_than_its_bound() -> None:
    assert wait_s(gathering(), 1, [away(1.6, 0.5)] * 50) == 0


def test_what_was_waited_already_counts() -> None:
    policy, ready_s = gathering(), time.perf_counter() - 0.9
    assert policy.wait_s(ready_s, 1, 1, [away(0.7, 0.5)] * 3) == 0


def test_nobody_waits_for_the_unknown_or_the_overdue_or_before_a_first_step() -> None:
    absent = Absence()
    absent.leave(time.perf_counter())
    assert wait_s(gathering(), 1, [absent] * 9) == 0
    assert wait_s(gathering(), 1, [away(0.2, 0.5)] * 9) == 0
    assert Gathering(waits=True).wait_s(time.perf_counter(), 1, 1, [away(0.6, 0.5)] * 9) == 0
    assert wait_s(gathering(waits=False), 1, [away(0.6, 0.5)] * 9) == 0


def test_a_chunk_waits_for_those_who_would_have_to_wait_for_it() -> None:
    policy, back_soon = gathering(fixed_s=0.02), [away(0.8, 0.5)] * 4
    assert wait_s(policy, 1, back_soon) == 0
    for _ in range(20):
        policy.count_step(1.4, num_rows=512)
    assert policy.wait_s(time.perf_counter(), 1, 512, back_soon) > 0.2
    assert policy.wait_s(time.perf_counter(), 1, 1, back_soon) == 0


def test_whom_the_neighbour_answered_gets_the_time_to_come_through_and_no_more() -> None:
    now_s = time.perf_counter()
    assert 0.9 * TRANSIT < gathering().transit_s(now_s) <= TRANSIT
    assert gathering().transit_s(now_s - 1.1 * TRANSIT) == 0
    assert gathering(waits=False).transit_s(now_s) == 0
    assert Gathering(waits=True).transit_s(now_s) == 0


def test_an_absence_is_as_long_as_the_last_ones_were() -> None:
    absence = Absence()
    for start_s in range(0, 100, 10):
        absence.leave(start_s)
        absence.arrive(start_s + 2.0)
    absence.leave(100.0)
    assert absence.expected_s(100.5) == pytest.approx(102.0)
    assert absence.expected_s(102.5) == pytest.approx(102.5)
    assert absence.expected_s(103.5) is None


def test_long_steps_are_not_soon_taken_for_a_fixed_cost_but_believed_in_the_end() -> None:
    policy = gathering(fixed_s=0.1)
    for _ in range(50):
        policy.count_step(1.0, num_rows=1)
    assert wait_s(policy, 1, [away(0.9, 0.5)] * 7) == 0
    for _ in range(5000):
        policy.count_step(1.0, num_rows=1)
    assert wait_s(policy, 1, [away(0.9, 0.5)] * 7) > 0
