"""Runs all parts of the measurement, each as a process with its own time limit.

python -m benchmarks.gpu.first_run [--total-s 540] [--out gpu_results] [--only PART,...] [options of benchmarks.gpu]

The most important parts run first. A part that fails or takes too long does not stop the others. results.json has each
part's status and figures, including other parts of earlier runs. Needs only Python's standard library: a missing
package fails the part that needs it.
"""

import argparse
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.gpu.results import FILE_NAME, Results

# Most seconds of each part. Together they are more than the total: few parts need all of their time.
LIMITS_S = {
    "machine": 60, "compile": 100, "tests": 150, "forwards": 120, "profile": 60, "reference": 60,
    "services": 300, "memory": 80, "identity": 130, "sharing": 200,
}  # fmt: skip
# A part with less time than this is not started.
LEAST_S = 10.0
# Between the polite end of a part and its hard end, and after the last part.
GRACE_S = 3.0
# The exit status of a part, and of the whole, that finds no GPU.
NO_GPU = 3
STATUSES = {0: "finished", NO_GPU: "no GPU"}
# prctl(2): processes whose parent ends become children of this process.
_PR_SET_CHILD_SUBREAPER = 36


def run_part(name: str, options: list[str], folder: Path, limit_s: float) -> str:
    results, started_s = Results(folder, name), time.monotonic()
    print(f"== {name}: up to {limit_s:.0f} s", flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu", name, "--out", str(folder), *options]
    process = subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)
    try:
        code = process.wait(limit_s)
        status = STATUSES.get(code, f"failed with exit status {code}")
    except subprocess.TimeoutExpired:
        status = f"ended after its {limit_s:.0f} s"
    end_children(process.pid)
    seconds = time.monotonic() - started_s
    results.put(status=status, seconds=round(seconds, 1))
    print(f"== {name}: {status}, {seconds:.0f} s", flush=True)
    return status


def end_children(group: int) -> None:
    """Ends the part's process group, and services that it left running, which are now this process's children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, number)
        deadline_s = time.monotonic() + GRACE_S
        while (children := living_children()) and time.monotonic() < deadline_s:
            for pid in children:
                os.kill(pid, number)
            time.sleep(0.1)
        if not children:
            return


def living_children() -> list[int]:
    """Returns process ids of all children. Reaps those that have ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        if parent == os.getpid():
            found.append(int(folder.name))
    return [pid for pid in found if os.waitpid(pid, os.WNOHANG)[0] == 0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-s", type=float, default=540.0)
    parser.add_argument("--out", type=Path, default=Path("gpu_results"))
    parser.add_argument("--only", default=",".join(LIMITS_S), help="some of the parts, in this order")
    arguments, options = parser.parse_known_args()
    names = arguments.only.split(",")
    if unknown := [name for name in names if name not in LIMITS_S]:
        parser.error(f"--only names {unknown[0]!r}; it must be some of {', '.join(LIMITS_S)}")
    ends_s = time.monotonic() + arguments.total_s
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in names:
        Results(arguments.out, name).forget()
    statuses = {}
    for name in names:
        left_s = ends_s - time.monotonic() - 2 * GRACE_S
        if left_s < LEAST_S:
            statuses[name] = "not started: no time was left"
            Results(arguments.out, name).put(status=statuses[name])
        else:
            statuses[name] = run_part(name, options, arguments.out, min(LIMITS_S[name], left_s))
    for name, status in statuses.items():
        print(f"{name:10s} {status}")
    print(f"figures: {arguments.out / FILE_NAME}", flush=True)
    if "no GPU" in statuses.values():
        sys.exit(NO_GPU)
    sys.exit(int(any(status != "finished" for status in statuses.values())))


if __name__ == "__main__":
    main()
