"""What a server says of itself."""

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from paceline.engine.forward_times import MeasuredTimes
from paceline.serving.servicer import ModelServicer

TIMES = MeasuredTimes([(1, 0.01), (2, 0.02)], [])


class Measurements:
    """Forwards that take until `end` is set, on a thread of their own."""

    def __init__(self, *results: Any) -> None:
        self.results = list(results)
        self.expected: list[Any] = []
        self.end = threading.Event()
        self.times = SimpleNamespace(begin=self.expected.append)

    async def call(self, measure: Any) -> Any:
        return await asyncio.to_thread(measure)

    def measure(self) -> Any:
        self.end.wait(30.0)
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def servicer_of(measurements: Measurements) -> ModelServicer:
    servicer = object.__new__(ModelServicer)
    servicer._forward_times = None
    servicer._engine = cast(Any, SimpleNamespace(worker=measurements, measure_forward_times=measurements.measure))
    return servicer


async def test_a_measurement_outlasts_a_caller_who_leaves() -> None:
    measurements = Measurements(TIMES)
    servicer = servicer_of(measurements)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(servicer.forward_times(), 0.05)
    measurements.end.set()
    assert await servicer.forward_times() == await servicer.forward_times() == TIMES
    assert measurements.expected == [TIMES.of_model]


async def test_a_measurement_that_failed_is_made_again() -> None:
    measurements = Measurements(RuntimeError("the device is lost"), TIMES)
    servicer = servicer_of(measurements)
    measurements.end.set()
    with pytest.raises(RuntimeError, match="the device is lost"):
        await servicer.forward_times()
    assert await servicer.forward_times() == TIMES
