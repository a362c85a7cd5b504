"""What a server says of its own speed."""

import pytest

from paceline.engine.scheduling.load_meter import LoadMeter


def test_slowdown_is_what_recent_forwards_took_of_what_was_measured() -> None:
    now_s = 100.0
    meter = LoadMeter(lambda: now_s)
    meter.count_step(9.0, 1)
    meter.expect([(1, 0.1), (3, 0.2)])
    for _ in range(20):
        meter.count_step(0.3, 2)
    # Too few, until there is one more.
    assert meter.slowdown == 0
    for _ in range(10):
        meter.count_step(0.3, 2)
    # A chunk longer than any that was measured.
    meter.count_step(50.0, 4)
    assert meter.slowdown == pytest.approx(2.0)
    for _ in range(300):
        meter.count_step(0.1, 3)
    assert meter.slowdown == pytest.approx(0.5, rel=0.05)
    now_s += 4.0
    assert meter.slowdown > 0
    now_s += 2.0
    # That was long ago.
    assert meter.slowdown == 0


def test_a_server_whose_forwards_were_not_measured_says_nothing() -> None:
    meter = LoadMeter()
    meter.expect([])
    meter.count_step(1.0, 1)
    assert meter.slowdown == 0


def test_busy_is_the_share_of_the_last_window() -> None:
    now_s = 0.0
    meter = LoadMeter(lambda: now_s)
    meter.count_step(0.3, 1)
    now_s = 0.5
    # The window is not over.
    assert meter.utilization(0.0) == 0
    now_s = 1.0
    assert meter.utilization(0.2) == pytest.approx(0.5)
    # The running step's first part is not counted twice.
    meter.count_step(0.7, 1)
    now_s = 2.0
    assert meter.utilization(0.0) == pytest.approx(0.5)
    now_s = 3.5
    assert meter.utilization(0.0) == 0
