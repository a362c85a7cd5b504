"""The first measurement on a GPU, as far as it runs without one (docs/models.md)."""

import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.test_imports import ROOT, imports

# What the machine with the GPU has, with all that these need.
FRAMEWORKS = ("torch", "triton", "transformers", "numba", "matplotlib", "pytest", "pytest-timeout", "pytest-xdist")
# Imported when a request or a setting asks for them, as no part does.
UNASKED = {"opentelemetry"}
# What the parts, and the services that they start, begin with.
ENTRIES = (
    *sorted((ROOT / "benchmarks" / "gpu").rglob("*.py")), *sorted((ROOT / "tests" / "engine" / "cuda").rglob("*.py")),
    *(ROOT / service / "__main__.py" for service in ("coordinator", "draft_server", "target_server")),
)  # fmt: skip


def normal(name: str) -> str:
    return re.sub("[-_.]+", "-", name).lower()


def with_needs(names: Iterable[str], found: set[str] | None = None) -> set[str]:
    """The packages that are installed here, and all that they require."""
    found = set() if found is None else found
    for name in map(normal, names):
        if name not in found:
            found.add(name)
            try:
                needs = [Requirement(each) for each in importlib.metadata.requires(name) or []]
            except importlib.metadata.PackageNotFoundError:
                continue
            with_needs(
                (each.name for each in needs if each.marker is None or each.marker.evaluate({"extra": ""})), found
            )
    return found


def own_files(entries: Iterable[Path]) -> Iterator[Path]:
    """The entries, and all of the project's files that they import, directly or not."""
    waiting, seen = list(entries), set[Path]()
    while waiting:
        file = waiting.pop()
        if file in seen:
            continue
        seen.add(file)
        yield file
        for name in imports(file):
            path = ROOT.joinpath(*name.split("."))
            waiting += [each for each in (path.with_suffix(".py"), path / "__init__.py") if each.is_file()]


def foreign_packages(file: Path) -> set[str]:
    """The first names of what a file imports from elsewhere."""
    tops = {name.partition(".")[0] for name in imports(file)} - UNASKED
    return {top for top in tops if top not in sys.stdlib_module_names and not (ROOT / top).exists()}


def test_a_bare_machine_gets_all_packages_that_the_measurement_imports() -> None:
    wheels = (ROOT / "benchmarks" / "gpu" / "wheels.txt").read_text()
    carried = {normal(line) for line in wheels.splitlines() if line and not line.startswith("#")}
    there = with_needs(FRAMEWORKS) | carried
    by_top = importlib.metadata.packages_distributions()
    missing = {
        f"{file.relative_to(ROOT)} imports {top}"
        for file in own_files(ENTRIES)
        for top in foreign_packages(file)
        if not {normal(each) for each in by_top.get(top, [top])} & there
    }
    assert missing == set()


def first_run(folder: Path, *options: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "benchmarks.gpu.first_run", "--out", str(folder), *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_without_a_gpu_it_says_so_and_keeps_what_other_parts_found(tmp_path: Path) -> None:
    before = {"machine": {"gpu": "of an earlier run"}, "forwards": {"copy_bytes_per_s": 1.0}}
    (tmp_path / "results.json").write_text(json.dumps(before))
    ran = first_run(tmp_path, "--only", "machine")
    assert ran.returncode == 3, ran.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert (results["machine"]["status"], results["forwards"]) == ("no GPU", before["forwards"])
    assert "gpu" not in results["machine"]


def test_a_part_that_nobody_knows_is_refused_by_name(tmp_path: Path) -> None:
    ran = first_run(tmp_path, "--only", "machine,speed")
    assert (ran.returncode, "--only names 'speed'" in ran.stderr) == (2, True)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_parts_with_services_run_on_a_cpu(tmp_path: Path) -> None:
    sizes = ("--prompt-tokens", "32", "--tokens", "8", "--sizes", "1,2", "--alphas", "0.8", "--count", "2")
    models = ("--device", "cpu", "--target", "dummy:tiny", "--draft", "dummy:tiny")
    ran = first_run(tmp_path, "--only", "services,identity,sharing", *models, *sizes)
    assert ran.returncode == 0, ran.stdout
    results = json.loads((tmp_path / "results.json").read_text())
    assert {part: each["status"] for part, each in results.items()} == dict.fromkeys(
        ("services", "identity", "sharing"), "finished"
    )
    assert results["identity"]["batch_invariant"]["differ"] == 0
