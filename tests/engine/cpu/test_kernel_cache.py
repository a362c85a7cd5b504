"""What is compiled is compiled again when any of its sources changes, and kept if there is a folder for it."""

import ast
import importlib.util
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch

from paceline.engine.cpu.kernel_cache import COMPILED_IN, KERNELS, KernelCache, kernel_folder
from paceline.engine.cpu.kernels import scalars
from tests.disks import FULL, READ_ONLY, disk, make_read_only, read_only

pytestmark = pytest.mark.slow

# Called from Python code around the kernels, or types alone: nothing of these is compiled.
NOT_COMPILED = {"paceline.engine.arrays", "paceline.engine.threads", "paceline.engine.cpu.kernel_cache"}


def test_the_caches_digest_covers_all_sources_that_kernels_take_from() -> None:
    found = set()
    for file in KERNELS.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "paceline":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name for name in names if is_module(name)} or {node.module}
    outside = {name for name in found if not name.startswith("paceline.engine.cpu.kernels")} - NOT_COMPILED
    assert {source_of(name) for name in outside} == set(COMPILED_IN)


def test_kernels_that_may_use_the_matrix_unit_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = set()
    # The same processor, but the system refuses one process the unit.
    for may_use in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
        monkeypatch.setattr(torch.cpu, "_init_amx", lambda may_use=may_use: may_use)
        folders.add(kernel_folder.__wrapped__())
    assert len(folders) == 2


def test_a_kernel_is_kept_in_this_cache_unless_it_is_inlined() -> None:
    assert isinstance(scalars.exp_of_negative._cache, KernelCache)
    assert not isinstance(scalars.compiled(inline=True)(lambda x: x)._cache, KernelCache)


def is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def source_of(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


ROOT = Path(__file__).parents[3]
PROGRAM = """
import os, sys
if "without-home" in sys.argv:
    del os.environ["HOME"]
    os.setresuid(2**31 - 7, 0, 0)
from numba import njit
from paceline.engine.cpu.kernel_cache import keep
def double(x):
    return 2 * x
kernel = keep(njit(double))
print(kernel(20), sum(kernel.stats.cache_hits.values()))
"""


def run_program(folder: Path, *arguments: str, checkout: Path = ROOT, **variables: Path) -> tuple[str, str]:
    """Runs PROGRAM with the folder as the user's home. Returns its stdout: the answer, and the kernels found; and stderr."""
    file = folder / "program.py"
    file.write_text(PROGRAM)
    names = {name: value for name, value in os.environ.items() if name not in ("NUMBA_CACHE_DIR", "PACELINE_CACHE_DIR")}
    environment = names | {
        "HOME": str(folder),
        "PYTHONPATH": str(checkout),
        **{k: str(v) for k, v in variables.items()},
    }
    ran = subprocess.run(
        [sys.executable, str(file), *arguments],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip(), ran.stderr


@pytest.mark.parametrize(("options", "said"), [
    (FULL, "No space left on device"), (READ_ONLY, "Read-only file system"), (None, "Not a directory"),
])  # fmt: skip
def test_kernels_that_can_not_be_kept_are_compiled_and_one_line_says_so(
    tmp_path: Path, options: str | None, said: str
) -> None:
    (tmp_path / "file").touch()
    with disk(tmp_path / "disk", options) if options else nullcontext(tmp_path / "file") as folder:
        out, error = run_program(tmp_path, NUMBA_CACHE_DIR=folder / "numba")
    assert out == "40 0"
    assert error.count("\n") == 1
    assert f"can't use the kernel cache {folder}/numba" in error
    assert error.endswith(f": {said}; set NUMBA_CACHE_DIR to another folder\n")


def test_kernels_of_a_read_only_checkout_are_kept_in_the_cache_folder(tmp_path: Path) -> None:
    with read_only(ROOT, tmp_path / "checkout") as checkout:
        found = [run_program(tmp_path, checkout=checkout) for _ in range(2)]
    assert found == [("40 0", ""), ("40 1", "")]
    assert [*tmp_path.glob(".cache/paceline/kernels/*/*/*.nbc")]


def test_kept_kernels_are_found_on_a_disk_that_can_not_be_written(tmp_path: Path) -> None:
    with disk(tmp_path / "disk", "size=1m") as folder:
        assert run_program(tmp_path, NUMBA_CACHE_DIR=folder) == ("40 0", "")
        make_read_only(folder)
        assert run_program(tmp_path, NUMBA_CACHE_DIR=folder) == ("40 1", "")


def test_a_user_without_a_home_is_told_of_the_variable(tmp_path: Path) -> None:
    if os.getuid():
        pytest.skip("only root may become another user")
    out, error = run_program(tmp_path, "without-home")
    assert (out, error.count("\n")) == ("40 0", 1)
    assert error.endswith("user id 2147483641 has no home folder; PACELINE_CACHE_DIR must name a folder for caches\n")
    assert run_program(tmp_path, "without-home", PACELINE_CACHE_DIR=tmp_path / "own") == ("40 0", "")
