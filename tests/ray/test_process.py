"""A replica's process, without Ray: gateways, as they start soonest."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from paceline.ray.process import Plan, ServiceProcess
from tests.certificates import Authority

SETTINGS = {"coordinators": "127.0.0.1:1"}
SUPERVISOR = f"""
import os, time
from paceline.ray.process import Plan, ServiceProcess
process = ServiceProcess(Plan("gateway", {SETTINGS!r}), "127.0.0.1", {{}}, print)
while not process.is_serving():
    time.sleep(0.05)
print("pid", process._process.pid, flush=True)
time.sleep(100)
"""


def wait_until(is_so: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 60.0
    while not is_so():
        assert time.monotonic() < deadline_s
        time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A zombie is not: nobody may wait for it here."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_killed_supervisor_leaves_no_process_behind() -> None:
    supervisor = subprocess.Popen([sys.executable, "-c", SUPERVISOR], stdout=subprocess.PIPE, text=True)
    assert supervisor.stdout is not None
    pid = next(int(line.split()[1]) for line in supervisor.stdout if line.startswith("pid "))
    assert is_alive(pid)
    supervisor.kill()
    supervisor.wait()
    wait_until(lambda: not is_alive(pid))


def test_a_process_with_tls_is_called_by_its_certificates_name(tmp_path: Path) -> None:
    files = Authority(tmp_path / "tls").issue("services", "subjectAltName=DNS:paceline").tls
    settings = {**SETTINGS, "tls_cert": files.cert, "tls_key": files.key}
    plan = Plan("gateway", settings, tls=replace(files, server_name="paceline"))
    process = ServiceProcess(plan, "127.0.0.1", {}, print)
    wait_until(process.is_serving)
    process.stop()


def test_a_process_that_ends_says_why() -> None:
    ended = threading.Event()
    process = ServiceProcess(Plan("gateway", {"max_body_bytes": 0}), "127.0.0.1", {}, lambda _: ended.set())
    assert ended.wait(60.0)
    assert process.has_ended
    assert "--max-body-bytes" in process.exit_reason


def test_a_process_that_is_stopped_ended_for_no_reason_of_its_own() -> None:
    ended = threading.Event()
    process = ServiceProcess(Plan("gateway", SETTINGS), "127.0.0.1", {}, lambda _: ended.set())
    wait_until(process.is_serving)
    process.stop()
    assert process.has_ended
    assert not process.is_serving()
    assert not ended.wait(0.2)
