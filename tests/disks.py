"""File systems that can't be written, for root too."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

FULL = "size=64k"
READ_ONLY = "ro"


@contextlib.contextmanager
def disk(folder: Path, options: str) -> Iterator[Path]:
    """Mounts a file system in memory at a new folder. Skips the test if this process may not."""
    with _mounted("-t", "tmpfs", "-o", options, "tmpfs", at=folder):
        if options == FULL:
            with contextlib.suppress(OSError):
                (folder / "filling").write_bytes(bytes(1 << 20))
        yield folder


@contextlib.contextmanager
def read_only(source: Path, folder: Path) -> Iterator[Path]:
    """Shows `source` at a new folder, where it can't be written. Skips the test if this process may not."""
    with _mounted("--bind", str(source), at=folder):
        make_read_only(folder, "bind")
        yield folder


def make_read_only(folder: Path, *options: str) -> None:
    """Of what is mounted there."""
    subprocess.run(["mount", "-o", ",".join(("remount", "ro", *options)), str(folder)], check=True)


@contextlib.contextmanager
def _mounted(*arguments: str, at: Path) -> Iterator[None]:
    at.mkdir()
    try:
        is_mounted = subprocess.run(["mount", *arguments, str(at)], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    if not is_mounted:
        pytest.skip("this process may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)
