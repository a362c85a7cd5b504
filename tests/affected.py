"""Chooses the tests that a change touches, the nearest first, and runs them within a budget of time.

python -m tests.affected [--base main] [--minutes 5] [--list] [-- flags of pytest]

The change is what the working tree has and the base has not. A test depends on what its file imports, directly or not;
on the fixtures it asks for; on the services that it starts as processes, by the names it starts them under; and on
other files, by the names it reads them under. Where a change reaches more than fits the budget, the tests at the
fewest steps from it come first, and the rest is named.

As a plug-in of pytest, this module runs what was chosen (`--chosen`) and records how long each file takes
(`--record-durations`, which updates tests/durations.json).
"""

import argparse
import gc
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.dependencies import Dependencies

ROOT = Path(__file__).parents[1]
DURATIONS = ROOT / "tests" / "durations.json"
# They read the whole tree, and take seconds.
ALWAYS = ("tests/test_docs.py", "tests/test_imports.py", "tests/test_package.py")
# Assumed of a file that is not in durations.json.
UNKNOWN_S = {"fast": 3.0, "slow": 30.0}
WORKERS = 2
# The rest goes to imports, to collection, and to the worker that ends last.
USED_SHARE = 0.75


@dataclass(frozen=True, slots=True)
class Unit:
    """The tests of one file that `make test` runs (`fast`), or those that `make test-all` runs (`slow`)."""

    file: str
    speed: str
    seconds: float
    steps: int
    reason: str
    folders_shared: int

    @property
    def order(self) -> tuple[int, int, float]:
        return self.steps, -self.folders_shared, self.seconds

    def __str__(self) -> str:
        return f"{self.steps:>3}  {self.seconds:>4.0f} s  {self.file} ({self.speed}): {self.reason}"


def git(*arguments: str, root: Path = ROOT) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.splitlines()


def changed_files(base: str, root: Path = ROOT) -> set[str]:
    """Lists what differs from where this branch left the base, committed or not."""
    (start,) = git("merge-base", base, "HEAD", root=root)
    tracked = git("diff", "--name-only", "--no-renames", start, root=root)
    return {*tracked, *git("ls-files", "--others", "--exclude-standard", root=root)}


def all_files(root: Path = ROOT) -> set[str]:
    return set(git("ls-files", "--cached", "--others", "--exclude-standard", root=root))


def units_of(file: str, durations: dict[str, dict[str, float]], source: str) -> dict[str, float]:
    """Seconds by speed: as recorded, or assumed by the file's markers."""
    if known := durations.get(file):
        return known
    only_slow = any("slow" in line for line in source.splitlines() if line.startswith("pytestmark"))
    speeds = ["slow"] * ("mark.slow" in source) + ["fast"] * (not only_slow)
    return {speed: UNKNOWN_S[speed] for speed in speeds}


def folders_shared(test: str, changed: str) -> int:
    """Counts the folders from the top that a test's place has in common with what it tests."""
    own = Path(test).parent.parts[1:]
    others = [part for part in Path(changed).parent.parts if part not in ("paceline", "tests")]
    # What both model servers do is tested in one folder.
    others = ["serving" if part in ("draft_server", "target_server") else part for part in others]
    return next((at for at, (a, b) in enumerate(zip(own, others, strict=False)) if a != b), min(len(own), len(others)))


def reached(changed: set[str], dependencies: Dependencies, durations: dict[str, dict[str, float]]) -> list[Unit]:
    """Lists what the change reaches, the nearest first: by steps, then by folder, then by seconds."""
    units = []
    ways = dependencies.ways_to(changed)
    for file in sorted(dependencies.tests):
        way = ways.get(file) or ([file] if file in ALWAYS else None)
        if way is None:
            continue
        reason = " < ".join(reversed(way[1:])) or ("changed" if file in changed else "reads the whole tree")
        source = dependencies.sources[file]
        shared = folders_shared(file, way[-1])
        for speed, seconds in units_of(file, durations, source).items():
            units.append(Unit(file, speed, seconds, len(way) - 1, reason, shared))
    return sorted(units, key=lambda unit: unit.order)


def fit(units: Iterable[Unit], budget_s: float) -> tuple[list[Unit], list[Unit]]:
    """Returns what fits the budget of all workers together, in order, and what does not."""
    chosen: list[Unit] = []
    left: list[Unit] = []
    spent_s = 0.0
    for unit in units:
        fits = spent_s + unit.seconds <= budget_s
        (chosen if fits else left).append(unit)
        spent_s += unit.seconds * fits
    return chosen, left


def tell(changed: set[str], chosen: list[Unit], left: list[Unit], unreached: list[str]) -> None:
    print(f"changed: {', '.join(sorted(changed))}")
    print("steps, seconds, tests, and what they depend on:")
    print(*chosen, sep="\n")
    if unreached:
        print(f"no test depends on {', '.join(unreached)}")
    if left:
        print(f"not run, for the budget: {', '.join(f'{unit.file} ({unit.speed})' for unit in left)}")
        fast, slow = (sum(unit.seconds for unit in left if unit.speed == speed) for speed in ("fast", "slow"))
        print(f"that leaves {fast:.0f} s for `make test` and {slow:.0f} s for `make test-all`")
    seconds = sum(unit.seconds for unit in chosen)
    print(f"{len(chosen)} of {len(chosen) + len(left)} parts reached, about {seconds / WORKERS:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.affected", description="Run the tests that a change touches."
    )
    parser.add_argument("--base", default="main", help="a commit or branch to compare with (default: main)")
    parser.add_argument("--minutes", type=float, default=5.0, help="what the tests may take (default: 5)")
    parser.add_argument("--list", action="store_true", help="say what would run, and run nothing")
    parser.add_argument("pytest", nargs="*", help="flags of pytest, after --")
    options = parser.parse_args()

    changed = changed_files(options.base)
    if not changed:
        print(f"nothing differs from {options.base}")
        return
    # Nothing of the syntax trees is garbage before the end.
    gc.disable()
    dependencies = Dependencies(ROOT, all_files(), changed)
    durations = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
    units = reached(changed, dependencies, durations)
    chosen, left = fit(units, options.minutes * 60 * WORKERS * USED_SHARE)
    tell(changed, chosen, left, sorted(changed - dependencies.read_by_tests(changed)))
    if options.list:
        return
    parts = json.dumps([f"{unit.file} {unit.speed}" for unit in chosen])
    files = sorted({unit.file for unit in chosen})
    command = [sys.executable, "-m", "pytest", "-p", "tests.affected", "--chosen", parts, "-m", "not campaign"]
    sys.exit(subprocess.run([*command, *options.pytest, *files], cwd=ROOT, check=False).returncode)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("affected")
    group.addoption("--chosen", help="the only parts to run, as JSON: files, each with `fast` or `slow`")
    group.addoption("--record-durations", action="store_true", help=f"update {DURATIONS.relative_to(ROOT)}")


def part_of(nodeid: str, marks: Iterable[str]) -> tuple[str, str]:
    return nodeid.partition("::")[0], "slow" if "slow" in marks else "fast"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if chosen := config.getoption("--chosen"):
        parts = set(json.loads(chosen))
        kept = [item for item in items if " ".join(part_of(item.nodeid, item.keywords)) in parts]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


class Recorder:
    """Sums the seconds of each part, setup and teardown included."""

    def __init__(self) -> None:
        self._seconds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file, speed = part_of(report.nodeid, report.keywords)
        self._seconds[file][speed] += report.duration

    def pytest_sessionfinish(self) -> None:
        known = json.loads(DURATIONS.read_text()) if DURATIONS.is_file() else {}
        for file, seconds in self._seconds.items():
            known[file] = known.get(file, {}) | {speed: round(value, 1) for speed, value in seconds.items()}
        there = {file: known[file] for file in sorted(known) if (ROOT / file).is_file()}
        lines = (f"{json.dumps(file)}: {json.dumps(there[file], sort_keys=True)}" for file in there)
        DURATIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def pytest_configure(config: pytest.Config) -> None:
    # A worker of xdist sends its reports to where this is not one.
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Recorder())


if __name__ == "__main__":
    main()
