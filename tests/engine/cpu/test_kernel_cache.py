"""What is compiled is compiled again when any of its sources changes."""

import ast
import importlib.util
from pathlib import Path

from paceline.engine.cpu.kernels import scalars

FOLDER = Path(scalars.__file__).parent
# Called from Python code around the kernels, or types alone: nothing of these is compiled.
NOT_COMPILED = {"paceline.engine.arrays", "paceline.engine.threads"}


def test_the_caches_digest_covers_all_sources_that_kernels_take_from() -> None:
    found = set()
    for file in FOLDER.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "paceline":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {name for name in names if is_module(name)} or {node.module}
    outside = {name for name in found if not name.startswith("paceline.engine.cpu.kernels")} - NOT_COMPILED
    assert {source_of(name) for name in outside} == set(scalars.COMPILED_IN)


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
