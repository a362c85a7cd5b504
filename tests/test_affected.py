"""The tests that a change touches are found, and the nearest fit the budget."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.affected import ALWAYS, ROOT, all_files, changed_files, fit, reached
from tests.dependencies import Dependencies

# A small project with the folders of this one.
TREE = {
    "paceline/__init__.py": "MODULES = {'Client': 'paceline.client'}\n",
    "paceline/errors.py": "class Missing(Exception): pass\n",
    "paceline/client.py": "from paceline.errors import Missing\n",
    "paceline/cli/__init__.py": "import paceline.client\n",
    "coordinator/__init__.py": "",
    "coordinator/__main__.py": "from coordinator.decoding import decode\n",
    "coordinator/decoding.py": "import importlib\ndef decode(name): importlib.import_module(f'coordinator.drafters.{name}')\n",
    "coordinator/drafters/__init__.py": "",
    "coordinator/drafters/ngram.py": "SIZE = 3\n",
    "gateway/__main__.py": "PAGE = 'static'\n",
    "gateway/static/page.js": "",
    "docs/server.md": "",
    "tests/__init__.py": "",
    "tests/conftest.py": (
        "import pytest\nfrom tests.services import start_service\n"
        "@pytest.fixture\ndef coordinator(): return start_service('coordinator')\n"
        "@pytest.fixture\ndef answered(coordinator): return coordinator\n"
    ),
    "tests/services.py": "import paceline.client\ndef start_service(module): pass\ndef free_port(): return 50_000\n",
    "tests/test_errors.py": "from paceline.errors import Missing\ndef test_missing(): assert issubclass(Missing, Exception)\n",
    "tests/test_client.py": "import paceline.client\ndef test_client(): pass\n",
    "tests/test_answers.py": "def test_answers(answered): pass\n",
    "tests/test_port.py": "from tests.services import free_port\ndef test_port(): assert free_port()\n",
    "tests/test_gateway.py": "from tests.services import start_service\ndef test_up(): start_service('gateway')\n",
    "tests/test_program.py": "PROGRAM = 'from paceline.cli import main; main()'\ndef test_program(): pass\n",
    "tests/test_patched.py": "def test_patched(monkeypatch): monkeypatch.setattr('paceline.client.Missing', None, raising=False)\n",
    "tests/test_pages.py": "PAGES = 'docs'\ndef test_pages(): pass\n",
    "tests/test_late.py": "import pytest\npytestmark = pytest.mark.slow\ndef test_late(): import coordinator.drafters.ngram\n",
}  # fmt: skip


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in TREE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def steps(tree: Path, *changed: str) -> dict[str, int]:
    dependencies = Dependencies(tree, all_files_of(tree), changed)
    return {Path(unit.file).stem: unit.steps for unit in reached(set(changed), dependencies, {})}


def all_files_of(tree: Path) -> set[str]:
    return {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}


def test_what_imports_a_changed_module_is_reached_by_the_shortest_way(tree: Path) -> None:
    assert steps(tree, "paceline/errors.py") == {
        "test_errors": 1, "test_client": 2, "test_patched": 2, "test_program": 3,
    }  # fmt: skip


def test_a_service_is_reached_by_the_fixtures_that_start_it_and_by_those_that_ask_for_them(tree: Path) -> None:
    assert steps(tree, "coordinator/decoding.py") == {"test_answers": 3}


def test_modules_imported_by_a_computed_name_are_reached(tree: Path) -> None:
    assert steps(tree, "coordinator/drafters/ngram.py") == {"test_late": 1, "test_answers": 4}


def test_what_names_a_service_depends_on_it_and_on_the_files_it_reads(tree: Path) -> None:
    assert steps(tree, "gateway/__main__.py") == {"test_gateway": 1}
    assert steps(tree, "gateway/static/page.js") == {"test_gateway": 2}


def test_a_program_in_a_string_and_a_patched_name_are_imports(tree: Path) -> None:
    assert steps(tree, "paceline/cli/__init__.py") == {"test_program": 1}
    assert steps(tree, "paceline/client.py")["test_patched"] == 1


def test_a_package_that_looks_up_its_names_when_asked_for_one_needs_none_of_them(tree: Path) -> None:
    assert "test_errors" not in steps(tree, "paceline/client.py")


def test_of_a_helper_only_the_definitions_in_use_are_needed(tree: Path) -> None:
    assert "test_port" not in steps(tree, "paceline/client.py")
    assert steps(tree, "tests/services.py")["test_port"] == 1


def test_a_page_reaches_what_reads_its_folder(tree: Path) -> None:
    assert steps(tree, "docs/server.md") == {"test_pages": 1}


def test_a_conftest_reaches_its_folder(tree: Path) -> None:
    assert steps(tree, "tests/conftest.py").keys() == {Path(name).stem for name in TREE if "/test_" in name}


def test_who_still_imports_a_module_that_is_gone_is_reached(tree: Path) -> None:
    (tree / "paceline/errors.py").unlink()
    assert steps(tree, "paceline/errors.py")["test_errors"] == 1


def test_the_nearest_fit_the_budget_and_the_rest_is_told(tree: Path) -> None:
    dependencies = Dependencies(tree, all_files_of(tree))
    durations = {"tests/test_errors.py": {"fast": 1.0}, "tests/test_client.py": {"fast": 3.0, "slow": 50.0}}
    units = reached({"paceline/errors.py"}, dependencies, durations)
    chosen, left = fit(units, budget_s=8.0)
    assert [(unit.file, unit.speed) for unit in chosen] == [
        ("tests/test_errors.py", "fast"), ("tests/test_client.py", "fast"), ("tests/test_patched.py", "fast"),
    ]  # fmt: skip
    assert sorted([*chosen, *left], key=lambda unit: unit.order) == units
    assert ("tests/test_client.py", "slow") in [(unit.file, unit.speed) for unit in left]


def test_it_runs_what_it_chose_and_fails_with_it(tree: Path) -> None:
    for file in ("__init__", "affected", "dependencies"):
        shutil.copy(ROOT / "tests" / f"{file}.py", tree / "tests")
    for file in ALWAYS:
        (tree / file).write_text("def test_tree(): pass\n")
    (tree / ".gitignore").write_text("__pycache__/\n")
    (tree / "pytest.ini").write_text("[pytest]\nmarkers =\n    slow\n    campaign\n")

    def run(*command: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)

    def affected() -> "subprocess.CompletedProcess[str]":
        return run(sys.executable, "-m", "tests.affected", "--", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")

    for arguments in (["init", "--quiet", "--initial-branch", "main"], ["add", "--all"]):
        run("git", *arguments)
    run("git", "-c", "user.name=a", "-c", "user.email=a@example.com", "commit", "--quiet", "--message", "All")
    assert "nothing differs from main" in affected().stdout
    (tree / "coordinator/drafters/ngram.py").write_text("SIZE = 4\n")
    passing = affected()
    assert passing.returncode == 0, passing.stdout + passing.stderr
    assert "tests/test_late.py (slow): coordinator/drafters/ngram.py" in passing.stdout
    assert f"{len(ALWAYS) + 2} passed" in passing.stdout
    (tree / "coordinator/drafters/ngram.py").write_text("SIZE = 1 / 0\n")
    failing = affected()
    assert failing.returncode == 1
    assert "ZeroDivisionError" in failing.stdout
    assert changed_files("main", tree) == {"coordinator/drafters/ngram.py"}


def test_this_trees_tests_are_near_what_they_test() -> None:
    dependencies = Dependencies(ROOT, all_files())
    ways = dependencies.ways_to(["coordinator/admission.py"])
    assert ways["tests/coordinator/test_admission.py"] == [
        "tests/coordinator/test_admission.py",
        "coordinator/admission.py",
    ]
    # By a fixture, the host of services, and the service.
    assert {"tests/hosted.py", "coordinator/__main__.py"} < set(ways["tests/end_to_end/test_logprobs.py"])
    assert not [file for file in dependencies.ways_to(["gateway/app.py"]) if file.startswith("tests/engine/")]
