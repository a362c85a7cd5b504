"""A worker process, stopped between its turns."""

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.disturbance import Disturbance
from benchmarks.peers.footprint import Footprint, footprint
from benchmarks.peers.protocol import Settings

ROOT = Path(__file__).parent.parent.parent
ANSWER_TIMEOUT_S = 900.0
END_TIMEOUT_S = 60.0
# Between waking a worker and asking it: what fell due while it was stopped (timers, keep-alives) runs first.
SETTLE_S = 0.2


class WorkerFailed(Exception):
    """Says why in the last line that the worker wrote."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A response, its wall time, and the share of CPU time taken by others meanwhile."""

    token_ids: list[list[int]]
    seconds: float
    others: float


class Worker:
    """One engine, loaded and stopped (SIGSTOP) until it is asked.

    On few cores an idle process costs time: threads spin, timers fire. A stopped one costs nothing.
    """

    def __init__(self, python: Path, module: str, settings: Settings, environment: dict[str, str]) -> None:
        """Waits until the worker is ready. Raises WorkerFailed."""
        started_s = time.perf_counter()
        self._log = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - closed in close
        self._process = subprocess.Popen(
            [python, "-m", module, json.dumps(asdict(settings))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log,
            cwd=ROOT, env={**os.environ, **environment}, text=True, bufsize=1,
            # Ctrl-C goes to the benchmark alone, which ends its workers in order.
            start_new_session=True,
        )  # fmt: skip
        try:
            self.version: str = self._hear()["ready"]
            self._start_s = time.perf_counter() - started_s
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def ask(self, prompts: list[list[int]], tokens: int, mode: str) -> Answer:
        """Wakes the worker for one request. Raises WorkerFailed."""
        self._signal(signal.SIGCONT)
        time.sleep(SETTLE_S)
        disturbance = Disturbance(_family(self._process.pid))
        try:
            print(json.dumps({"prompts": prompts, "tokens": tokens, "mode": mode}), file=self._process.stdin)
            answer = self._hear()
            others = disturbance.share()
        except BrokenPipeError as error:
            raise WorkerFailed(self._exit_reason()) from error
        finally:
            self._signal(signal.SIGSTOP)
        return Answer(answer["token_ids"], answer["seconds"], others)

    def footprint(self, name: str) -> Footprint:
        """Raises OSError if the worker has ended."""
        return footprint(name, self._start_s, _family(self._process.pid))

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._log.close()

    def _hear(self) -> Any:
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)[0]:
            raise WorkerFailed(f"no answer within {ANSWER_TIMEOUT_S:.0f} s")
        line = self._process.stdout.readline()
        if not line:
            raise WorkerFailed(self._exit_reason())
        return json.loads(line)

    def _exit_reason(self) -> str:
        """Says how the process ended, once its stdout is closed."""
        status = self._process.wait(END_TIMEOUT_S)
        self._log.seek(0)
        lines = [line.strip() for line in self._log if line.strip()]
        return f"ended with status {status}: {lines[-1] if lines else 'no word'}"

    def _signal(self, number: signal.Signals) -> None:
        """Signals the worker and all its descendants."""
        if self._process.poll() is None:
            for pid in _family(self._process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)


def _family(pid: int) -> list[int]:
    """Returns the process and its descendants, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            # The name before the last bracket may hold anything.
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    family = [pid]
    for endpoint in family:
        family.extend(children.get(endpoint, []))
    return family
