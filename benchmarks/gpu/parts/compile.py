"""Compiles all kernels for a Hopper GPU with the installed Triton, and counts spilled registers."""

import subprocess
import sys

from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results


def measure(options: Options, results: Results) -> None:
    command = [sys.executable, "-m", "tests.engine.cuda.compile_all"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        spilled: dict[str, int] = {}
        num_kernels = 0
        for line in process.stdout:
            print(line, end="")
            if line.endswith("bytes spilled\n"):
                num_kernels += 1
                name, spilled_bytes = line.split()[0], int(line.split()[-3])
                spilled[name] = max(spilled.get(name, 0), spilled_bytes)
                results.put(num_kernels=num_kernels, most_spilled_bytes=spilled)
    if process.returncode != 0:
        raise RuntimeError(f"the compiler refused a kernel; status {process.returncode}, reasons in the log")
