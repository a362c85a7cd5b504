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
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("this process may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
