"""The memory that a process may take, from files as the kernel writes them."""

from pathlib import Path

import pytest

from paceline.engine.cpu import backend

GIB = 1 << 30


def write_group(folder: Path, limit: str, usage: int, limit_name: str, usage_name: str) -> tuple[Path, str, str]:
    folder.mkdir()
    (folder / limit_name).write_text(f"{limit}\n")
    (folder / usage_name).write_text(f"{usage}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {GIB}\n")
    return folder, limit_name, usage_name


@pytest.fixture(autouse=True)
def _machine_of_8_gib(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text(f"MemTotal: 9999999999 kB\nMemFree: 5 kB\nMemAvailable: {8 * GIB // 1024} kB\n")
    monkeypatch.setattr(backend, "MEMINFO", tmp_path / "meminfo")


@pytest.mark.parametrize(
    ("names", "limit", "expected"),
    [
        pytest.param(("memory.max", "memory.current"), str(4 * GIB), 3 * GIB, id="version 2"),
        pytest.param(("memory.limit_in_bytes", "memory.usage_in_bytes"), str(4 * GIB), 3 * GIB, id="version 1"),
        pytest.param(("memory.max", "memory.current"), "max", 8 * GIB, id="no limit"),
        pytest.param(("memory.max", "memory.current"), str(1 << 62), 8 * GIB, id="more than the machine has"),
    ],
)
def test_the_smaller_counts(
    names: tuple[str, str], limit: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = write_group(tmp_path / "group", limit, 2 * GIB, *names)
    monkeypatch.setattr(backend, "GROUPS", (group,))
    assert backend.available_bytes() == expected


def test_without_control_groups_the_machine_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "GROUPS", ((tmp_path / "none", "memory.max", "memory.current"),))
    assert backend.available_bytes() == 8 * GIB
