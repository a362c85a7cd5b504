"""Services under Ray, in a network of their own: nothing that is killed changes a token, and Ray replaces it."""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.ray.cluster import NAMESPACE
from tests.telling import Tell

pytest.importorskip("ray", reason="Ray is not installed: `make ray` installs it")
ISOLATED = [*NAMESPACE, "--net"]
if subprocess.run([*ISOLATED, "true"], capture_output=True).returncode:
    pytest.skip("namespaces of network and processes need root", allow_module_level=True)
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def figures_of(scenario: str, tell: Tell) -> dict[str, float]:
    # Not below pytest's folder: a socket's path would be too long.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder:
        command = [*ISOLATED, sys.executable, "-m", "tests.ray", scenario, folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr
        # All ended with the namespace's first process.
        assert folder.encode() not in b"".join(map(command_line, Path("/proc").glob("[0-9]*/cmdline")))
    figures: dict[str, float] = json.loads(done.stdout)
    tell(f"Ray, {scenario}: {', '.join(f'{name} {value}' for name, value in figures.items())}; {done.stderr}")
    return figures


def command_line(file: Path) -> bytes:
    with contextlib.suppress(OSError):
        return file.read_bytes()
    return b""


def test_the_documented_command_serves_and_leaves_nothing_behind(tell: Tell) -> None:
    figures = figures_of("documented", tell)
    assert (figures["services left"], figures["folders left"]) == (0, 0)


def test_killed_processes_supervisors_nodes_and_heads_change_no_token_and_are_replaced(tell: Tell) -> None:
    figures = figures_of("chaos", tell)
    assert figures["failures"] == 0 < figures["answers"]
    assert figures["process: another supervisor"] == 0
    # A target and a coordinator: else the node's end proves little.
    assert figures["node: roles there"] == 2


def test_targets_come_and_go_with_what_answers_reserve_and_no_answer_notices(tell: Tell) -> None:
    figures = figures_of("scaling", tell)
    assert (figures["targets at first"], figures["failures"]) == (1, 0)
    assert figures["answers"] > 0


def test_services_speak_tls_by_a_certificates_name(tell: Tell) -> None:
    assert figures_of("secured", tell)["services in the clear"] == 0
