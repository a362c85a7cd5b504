"""When a worker waits for a fuller batch, and when it does not."""

import time

import pytest

from paceline.engine.scheduling.batching_policy import PEER_WAIT, BatchingPolicy, ReturnTime


def away(usual_s: float, gone_s: float) -> ReturnTime:
    """A sequence that is usually away for `usual_s` and left `gone_s` ago."""
    return_time, now_s = ReturnTime(), time.perf_counter()
    return_time.leave(now_s - 10)
    return_time.arrive(now_s - 10 + usual_s)
    return_time.leave(now_s - gone_s)
    return return_time


def batching_policy(fixed_s: float = 1.0, waits: bool = True) -> BatchingPolicy:
    made = BatchingPolicy(waits)
    made.count_step(fixed_s, num_tokens=1)
    return made


def wait_s(policy: BatchingPolicy, num_ready: int, return_times: list[ReturnTime]) -> float:
    return policy.wait_s(time.perf_counter(), num_ready, num_ready, return_times)


# Times are far longer than the clock's noise: a step takes a second.
def test_many_that_are_about_to_come_are_waited_for() -> None:
    assert 0.05 < wait_s(batching_policy(), 1, [away(0.6, 0.5)] * 7) < 0.2


def test_many_do_not_wait_for_one() -> None:
    assert wait_s(batching_policy(), 7, [away(0.9, 0.5)]) == 0


def test_a_wait_that_costs_more_than_it_saves_is_not_begun() -> None:
    assert wait_s(batching_policy(), 4, [away(1.1, 0.5)] * 4) == 0


def test_no_wait_is_longer_than_its_bound() -> None:
    assert wait_s(batching_policy(), 1, [away(1.6, 0.5)] * 50) == 0


def test_what_was_waited_already_counts() -> None:
    policy, ready_s = batching_policy(), time.perf_counter() - 0.9
    assert policy.wait_s(ready_s, 1, 1, [away(0.7, 0.5)] * 3) == 0


def test_nobody_waits_for_the_unknown_or_the_overdue_or_before_a_first_step() -> None:
    absent = ReturnTime()
    absent.leave(time.perf_counter())
    assert wait_s(batching_policy(), 1, [absent] * 9) == 0
    assert wait_s(batching_policy(), 1, [away(0.2, 0.5)] * 9) == 0
    assert BatchingPolicy(waits=True).wait_s(time.perf_counter(), 1, 1, [away(0.6, 0.5)] * 9) == 0
    assert wait_s(batching_policy(waits=False), 1, [away(0.6, 0.5)] * 9) == 0


def test_a_chunk_waits_for_those_who_would_have_to_wait_for_it() -> None:
    policy, back_soon = batching_policy(fixed_s=0.02), [away(0.8, 0.5)] * 4
    assert wait_s(policy, 1, back_soon) == 0
    for _ in range(20):
        policy.count_step(1.4, num_tokens=512)
    assert policy.wait_s(time.perf_counter(), 1, 512, back_soon) > 0.2
    assert policy.wait_s(time.perf_counter(), 1, 1, back_soon) == 0


def test_whom_the_neighbor_answered_gets_the_time_to_come_through_and_no_more() -> None:
    now_s = time.perf_counter()
    assert 0.9 * PEER_WAIT < batching_policy().peer_wait_s(now_s) <= PEER_WAIT
    assert batching_policy().peer_wait_s(now_s - 1.1 * PEER_WAIT) == 0
    assert batching_policy(waits=False).peer_wait_s(now_s) == 0
    assert BatchingPolicy(waits=True).peer_wait_s(now_s) == 0


def test_an_absence_is_as_long_as_the_last_ones_were() -> None:
    return_time = ReturnTime()
    for start_s in range(0, 100, 10):
        return_time.leave(start_s)
        return_time.arrive(start_s + 2.0)
    return_time.leave(100.0)
    assert return_time.due_s == pytest.approx(102.0)
    assert 102.5 < return_time.overdue_s < 103.5


def test_long_steps_are_not_soon_taken_for_a_fixed_cost_but_believed_in_the_end() -> None:
    policy = batching_policy(fixed_s=0.1)
    for _ in range(50):
        policy.count_step(1.0, num_tokens=1)
    assert wait_s(policy, 1, [away(0.9, 0.5)] * 7) == 0
    for _ in range(5000):
        policy.count_step(1.0, num_tokens=1)
    assert wait_s(policy, 1, [away(0.9, 0.5)] * 7) > 0
