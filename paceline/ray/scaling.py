"""Numbers of replicas, from what the processes report in their metrics.

`deploy/ray/serve.yaml` names the policy: `policy_function: paceline.ray.scaling:by_load`.
"""

import http.client
import time
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

# What part of the targets' KV cache generations should reserve, and how many should wait for each target, at most.
CACHE_SHARE, NUM_WAITING = 0.8, 8
# By role: a counter of seconds, and what part of the time it should run, at most.
BUSY = {
    "draft": ("paceline_engine_step_seconds_sum", 0.7),
    "coordinator": ("process_cpu_seconds_total", 0.6),
    "gateway": ("process_cpu_seconds_total", 0.6),
}
TIMEOUT_S = 5.0


class Demand(NamedTuple):
    """What generations ask of all targets together."""

    reserved_tokens: float = 0.0
    num_waiting: float = 0.0


class Meter:
    """Reads a process's metrics."""

    def __init__(self, role: str, address: str) -> None:
        self.role = role
        self._address = address
        # When the counter was last read, and its value.
        self._last: tuple[float, float] | None = None

    def demand(self) -> Demand:
        """Returns what a coordinator's generations ask of the targets."""
        samples = self._samples()
        reserved = _sum(samples, "paceline_server_reserved_tokens", server="target")
        return Demand(reserved, _sum(samples, "paceline_generations_waiting"))

    def num_targets(self, demand: Demand) -> float:
        """Returns how many targets of this one's size the demand takes."""
        samples = self._samples()
        tokens = _sum(samples, "paceline_kv_cache_blocks") * _sum(samples, "paceline_kv_cache_block_tokens")
        return max(demand.reserved_tokens / (CACHE_SHARE * tokens), demand.num_waiting / NUM_WAITING)

    def load(self) -> float:
        """Returns how many processes of its role this one's work since the last call takes."""
        counter, share = BUSY[self.role]
        now_s, value = time.monotonic(), _sum(self._samples(), counter)
        last_s, last = self._last or (now_s, value)
        self._last = now_s, value
        return (value - last) / share / (now_s - last_s) if now_s > last_s else 0.0

    def _samples(self) -> list[Sample]:
        host, _, port = self._address.rpartition(":")
        connection = http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
        try:
            connection.request("GET", "/metrics")
            families = text_string_to_metric_families(connection.getresponse().read().decode())
            return [sample for family in families for sample in family.samples]
        finally:
            connection.close()


def by_load(context: Any) -> tuple[float, dict[str, Any]]:
    """Policy of Ray Serve: enough replicas for the work of all, and for what is asked of their role."""
    loads, demands = (context.aggregated_metrics.get(name, {}).values() for name in ("load", "demand"))
    return (max(sum(loads), *demands) if demands else context.target_num_replicas), {}


def _sum(samples: list[Sample], name: str, **labels: str) -> float:
    return sum(each.value for each in samples if each.name == name and labels.items() <= each.labels.items())
