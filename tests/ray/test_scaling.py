"""Numbers of replicas, without Ray."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from prometheus_client import CollectorRegistry, Gauge, start_http_server

from paceline.observability.exposition import new_registry
from paceline.ray import scaling
from paceline.ray.scaling import BUSY, Demand, Meter, by_load
from paceline.serving.telemetry import StepMetrics


@contextmanager
def metered(registry: CollectorRegistry, role: str) -> Iterator[Meter]:
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        yield Meter(role, f"127.0.0.1:{server.server_port}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_targets_are_asked_for_by_reserved_cache_and_by_waiting_generations() -> None:
    at_coordinator, at_target = CollectorRegistry(), CollectorRegistry()
    reserved = Gauge("paceline_server_reserved_tokens", "", ["server", "address"], registry=at_coordinator)
    for address, tokens in (("a", 3000), ("b", 1000)):
        reserved.labels("target", address).set(tokens)
        reserved.labels("draft", address).set(9000)
    Gauge("paceline_generations_waiting", "", registry=at_coordinator).set(4)
    blocks = Gauge("paceline_kv_cache_blocks", "", ["state"], registry=at_target)
    for state, number in (("free", 10), ("cached", 20), ("held", 70)):
        blocks.labels(state).set(number)
    Gauge("paceline_kv_cache_block_tokens", "", registry=at_target).set(10)
    with metered(at_coordinator, "coordinator") as coordinator, metered(at_target, "target") as target:
        assert coordinator.demand() == Demand(4000, 4)
        assert target.num_targets(Demand(4000, 4)) == 4000 / 1000 / 0.8
        assert target.num_targets(Demand(4000, 80)) == 80 / 8


def test_a_drafts_work_is_the_time_of_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 100.0
    monkeypatch.setattr(scaling, "time", SimpleNamespace(monotonic=lambda: now_s))
    registry = CollectorRegistry()
    steps = StepMetrics(registry)
    with metered(registry, "draft") as draft:
        steps.on_step(5.0, 1, 1, 0)
        # Of the time before it is not known how long it was.
        assert draft.load() == 0.0
        for _ in range(2):
            steps.on_step(0.7, 1, 1, 0)
        now_s += 1.0
        assert draft.load() == pytest.approx(2.0)


@pytest.mark.parametrize("role", ["coordinator", "gateway"])
def test_fronts_are_measured_by_a_counter_that_every_service_has(role: str) -> None:
    assert BUSY[role][0] in {sample.name for family in new_registry(role).collect() for sample in family.samples}


def context(num_replicas: int, **metrics: list[float]) -> SimpleNamespace:
    by_replica = {name: dict(enumerate(values)) for name, values in metrics.items()}
    return SimpleNamespace(aggregated_metrics=by_replica, target_num_replicas=num_replicas)


def test_the_policy_has_replicas_for_all_work_and_for_what_is_asked_for() -> None:
    assert by_load(context(2, load=[0.9, 0.7], demand=[0.0, 0.0]))[0] == pytest.approx(1.6)
    # One has not heard yet of what is asked for.
    assert by_load(context(2, load=[0.0, 0.0], demand=[2.5, 0.0]))[0] == 2.5
    # Nothing is known after the controller's start.
    assert by_load(context(3))[0] == 3
