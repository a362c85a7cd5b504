"""The GPU engine's tests, on the GPU."""

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results

# Tests of one file share models.
PYTEST = (
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-m",
    "not slow and not campaign",
    "-n",
    "4",
    "--dist",
    "loadfile",
)


def measure(options: Options, results: Results) -> None:
    with tempfile.TemporaryDirectory(prefix="paceline-gpu-") as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, *PYTEST, f"--junitxml={report}", "tests/engine/cuda"]
        code = subprocess.run(command, check=False).returncode
        found = next(ElementTree.parse(report).getroot().iter("testsuite"))
    results.put(**{name: int(found.attrib[name]) for name in ("tests", "failures", "errors", "skipped")})
    bad = [
        case.attrib["name"]
        for case in found.iter("testcase")
        if case.find("failure") is not None or case.find("error") is not None
    ]
    results.put(failed=bad)
    if code != 0:
        raise RuntimeError(f"pytest ended with status {code}")
