"""`paceline up` as a process: whatever ends it, nothing it started goes on; and it knows its own services from others."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline.client import Client
from paceline.errors import Unauthenticated
from paceline.keys import make_key

TINY = (
    "--target-model",
    "dummy:tiny",
    "--draft-model",
    "dummy:tiny",
    "--dtype",
    "float32",
    "--kv-cache-memory",
    "16MiB",
)
TIMEOUT_S = 120.0
MODULES = ("draft_server", "target_server", "coordinator", "gateway")


@contextlib.contextmanager
def running_up(folder: Path, address: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    program = "from paceline.cli import main; main()"
    command = [
        sys.executable,
        "-c",
        program,
        "up",
        *TINY,
        "--listen",
        address,
        "--http",
        f"unix:{folder}/gateway.sock",
        *flags,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(TIMEOUT_S)


def services_of(folder: Path) -> list[int]:
    """Ids of service processes whose sockets lie below `folder`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit():
                words = (entry / "cmdline").read_bytes().decode().split("\0")
                if str(folder) in " ".join(words) and any(module in words for module in MODULES):
                    found.append(int(entry.name))
    return found


def wait_for(condition) -> bool:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        if condition():
            return True
        time.sleep(0.05)
    return False


def wait_ready(process: subprocess.Popen[str], address: str, folder: Path) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == f"ready {address} unix:{folder}/gateway.sock\n"


def test_another_up_on_its_address_ends_at_once_and_says_why_and_a_killed_one_leaves_nothing(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/coordinator.sock"
    with running_up(tmp_path, address) as first:
        wait_ready(first, address, tmp_path)
        with running_up(tmp_path, address) as second:
            _, error = second.communicate(timeout=TIMEOUT_S)
            assert second.returncode == 1
            assert f"a coordinator serves at {address} already" in error
            assert "--listen" in error
        assert len(services_of(tmp_path)) == 4, "those of the first"
        first.kill()
        assert wait_for(lambda: not services_of(tmp_path)), "its services follow it"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_the_start_stops_everything(tmp_path: Path, number: signal.Signals) -> None:
    with running_up(tmp_path, f"unix:{tmp_path}/coordinator.sock") as process:
        assert wait_for(lambda: len(services_of(tmp_path)) == 2), "the model servers come first"
        process.send_signal(number)
        output, _ = process.communicate(timeout=TIMEOUT_S)
        assert (process.returncode, output) == (0, "")
        assert services_of(tmp_path) == []


def test_keys_are_the_coordinators(tmp_path: Path) -> None:
    address, keys = f"unix:{tmp_path}/coordinator.sock", tmp_path / "keys"
    key = make_key(keys, "alice")
    with running_up(tmp_path, address, "--api-keys", str(keys)) as process:
        wait_ready(process, address, tmp_path)
        with Client(address, key) as client:
            assert client.describe().max_running > 0
        with Client(address, "another") as client, pytest.raises(Unauthenticated):
            client.describe()
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_S)
    assert "--api-key-file FILE" in log, "the hint says what a command needs"
    assert key not in log
