"""One process of a replica."""

import contextlib
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.ray.scaling import Meter
from paceline.rpc.channel import NO_TLS
from paceline.rpc.health import instance_at, is_serving
from paceline.rpc.server import DRAIN_S, supervised_environment
from paceline.rpc.tls import Tls
from paceline.settings import as_flags

MODULES = {"target": "target_server", "draft": "draft_server", "coordinator": "coordinator", "gateway": "gateway"}
# Where metrics are served: for the supervisor alone.
LOOPBACK = "127.0.0.1"
# How long a process may take to end after SIGTERM.
STOP_TIMEOUT_S = DRAIN_S + 5.0
HEALTH_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What to start."""

    role: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    # 0: any free port.
    port: int = 0
    # Settings that name servers, and the servers' roles.
    servers: Mapping[str, str] = field(default_factory=dict)
    # Files for calling it; empty if it serves without TLS.
    tls: Tls = NO_TLS


class ServiceProcess:
    """Runs a plan. Start it on a thread that lives as long as this process: with that thread the kernel kills it."""

    def __init__(
        self, plan: Plan, host: str, more: Mapping[str, Any], on_end: Callable[["ServiceProcess"], None]
    ) -> None:
        """`more`: settings that the plan's override. `on_end` is called on another thread, unless `stop` was."""
        self.plan, self.role = plan, plan.role
        self.address = f"{host}:{plan.port or free_port(host)}"
        settings = {"metrics": f"{LOOPBACK}:{free_port(LOOPBACK)}", **more, **plan.settings, "listen": self.address}
        self.meter = Meter(self.role, str(settings["metrics"]))
        self._tls = plan.tls
        # Tells it apart, in health checks, from another process at its address.
        self.instance = secrets.token_hex(8)
        self._last_line = ""
        self._is_stopping = False
        # SIGTERM would leave it a GPU's memory for as long as it drains, next to its successor.
        environment = supervised_environment(self.instance, signal.SIGKILL)
        # Ray's, for a task of one core; the servers choose their threads.
        environment.pop("OMP_NUM_THREADS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", MODULES[self.role], *as_flags(settings)],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
            env=environment, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._watch, args=(on_end,), daemon=True).start()

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    @property
    def exit_reason(self) -> str:
        return f"the {self.role} at {self.address} ended with status {self._process.poll()}: {self._last_line}"

    def is_serving(self) -> bool:
        """Returns whether this process, not another, answers at its address."""
        if self.role == "gateway":
            return instance_at(self.address, HEALTH_TIMEOUT_S, self._tls) == self.instance
        return is_serving(self.address, HEALTH_TIMEOUT_S, f"instance.{self.instance}", self._tls)

    def stop(self) -> None:
        """Lets it drain."""
        self._is_stopping = True
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _watch(self, on_end: Callable[["ServiceProcess"], None]) -> None:
        """Copies its log to this process's, which Ray keeps and shows."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._last_line = line.strip() or self._last_line
            print(f"{self.role:>11} | {line}", end="", flush=True)
        self._process.wait()
        if not self._is_stopping:
            on_end(self)


def free_port(host: str) -> int:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host.strip("[]"), 0))
        port: int = probe.getsockname()[1]
        return port


def end_now() -> None:
    """Ends this process without destructors, and with it those it started."""
    os._exit(1)
