"""A forked service is what `python -m` would have started."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.forked import ForkedProcess

PROGRAM = """
import os, sys, time
THREADS = "paceline.engine.threads"
print(__name__, sys.argv[1:], os.getcwd(), os.environ["ASKED"], "torch" in sys.modules, THREADS in sys.modules, flush=True)
print("to stderr", file=sys.stderr, flush=True)
if "wait" in sys.argv:
    time.sleep(60)
sys.exit(3)
"""


def start(folder: Path, *arguments: str) -> ForkedProcess:
    (folder / "my_service.py").write_text(PROGRAM)
    (folder / "log").touch()
    return ForkedProcess("my_service", [*arguments], folder, folder / "log", {**os.environ, "ASKED": "yes"})


def test_it_runs_in_its_folder_and_environment_with_imports_done_and_no_threads_started(tmp_path: Path) -> None:
    process = start(tmp_path, "--flag", "1")
    assert process.wait(60) == 3
    assert process.args[2:] == ["my_service", "--flag", "1"]
    told = (tmp_path / "log").read_text().splitlines()
    assert told == [f"__main__ ['--flag', '1'] {tmp_path} yes True False", "to stderr"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_ends_it_and_is_its_status(tmp_path: Path, number: signal.Signals) -> None:
    process = start(tmp_path, "wait")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(60) == -number
    # It is gone: another process may have its number.
    process.kill()
