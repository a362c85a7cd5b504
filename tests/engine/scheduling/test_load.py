"""How busy a server says it is."""

import pytest

from paceline.engine.scheduling.load_meter import LoadMeter


def test_busy_is_the_share_of_the_last_window() -> None:
    now_s = 0.0
    meter = LoadMeter(lambda: now_s)
    meter.count_step(0.3)
    now_s = 0.5
    # The window is not over.
    assert meter.utilization(0.0) == 0
    now_s = 1.0
    assert meter.utilization(0.2) == pytest.approx(0.5)
    # The running step's first part is not counted twice.
    meter.count_step(0.7)
    now_s = 2.0
    assert meter.utilization(0.0) == pytest.approx(0.5)
    now_s = 3.5
    assert meter.utilization(0.0) == 0
