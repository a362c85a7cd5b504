"""Services as processes of their own, forked from one that has imported what they import.

torch, transformers and Numba take a service six CPU seconds to import. Here multiprocessing's fork server imports them,
once for each worker of xdist. Such a process differs from `python -m MODULE` only in how it was begun; what depends on
that (OMP_NUM_THREADS, the cores it may use) is for `subprocess`.
"""

import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
# Put together, as tests/dependencies.py would take the name for an import: of all services, by whoever starts one.
CONTEXT.set_forkserver_preload([f"{__package__}.preloaded"])


def run_module(module: str, arguments: list[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
    """Becomes `python -m MODULE` in this folder."""
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    sys.argv = [module, *arguments]
    sys.path.insert(0, str(folder))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


class ForkedProcess:
    """The part of `subprocess.Popen` that tests use."""

    def __init__(self, module: str, arguments: list[str], folder: Path, log: Path, environment: dict[str, str]) -> None:
        self.args = [sys.executable, "-m", module, *arguments]
        given = (module, arguments, folder, log, environment)
        # A daemon: what a failed test leaves behind ends with the tests.
        self._process = CONTEXT.Process(target=run_module, args=given, daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)
