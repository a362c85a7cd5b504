"""What `import paceline` offers, to programs and to type checkers."""

import ast
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import paceline

ROOT = Path(__file__).parent.parent
# Of these Paceline uses private parts.
BOUNDED = ("llguidance", "numba", "torch", "transformers", "uvicorn")
NAMES = {"AsyncClient", "Client", "Infill", "OutputFormat", "SamplingParams", "SpeculationParams", "Tls"}


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)


def test_the_usual_names_come_from_the_package() -> None:
    for name in NAMES:
        assert getattr(paceline, name).__name__ == name
    assert set(dir(paceline)) >= NAMES
    with pytest.raises(AttributeError, match="no attribute 'Clint'"):
        paceline.Clint  # noqa: B018


def test_importing_the_package_alone_loads_no_grpc() -> None:
    ran = run("import sys, paceline; assert 'grpc' not in sys.modules; paceline.Client; assert 'grpc' in sys.modules")
    assert ran.returncode == 0, ran.stderr


def test_type_checkers_see_the_same_names() -> None:
    stub = ast.parse((ROOT / "paceline" / "__init__.pyi").read_text())
    told = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert told == NAMES


def test_marker_and_stub_are_installed() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["paceline"]
    assert [name for name in ("py.typed", "__init__.pyi") if name not in data] == []
    assert (ROOT / "paceline" / "py.typed").is_file()


def test_libraries_whose_private_parts_are_used_are_installed_in_a_version_that_was_tested() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    ranges = {each.name: each.specifier for each in map(Requirement, listed)}
    for name in BOUNDED:
        assert {bound.operator for bound in ranges[name]} == {">=", "<"}, name
        assert ranges[name].contains(version(name)), f"{name} {version(name)} is not in {ranges[name]}"
