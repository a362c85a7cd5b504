"""How much memory this process may still take: what the machine has, and what its control group allows; and giving back.

In a container the machine's memory is not the limit: who takes more than the group's limit is killed, without a word.
"""

import contextlib
import ctypes
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
# Where the control groups of a container are: version 2, then version 1. Limit, usage and statistics.
GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """What can be taken without swapping, and without reaching the control group's limit."""
    return min([_of_machine(), *_of_groups()])


def give_back_freed() -> None:
    """Gives back to the system what was freed. glibc keeps it: 0.2 GiB after a model with 128,256 tokens is loaded.

    Other C libraries have no such call, and keep less.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _of_machine() -> int:
    """Free memory, and what the kernel gives back: files it keeps in memory."""
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _of_groups() -> list[int]:
    """What each control group with a limit leaves. Files kept in memory count as usage, and are given back."""
    rooms = []
    for folder, limit_name, usage_name in GROUPS:
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if limit != "max":
            rooms.append(int(limit) - usage + int(statistics.get("inactive_file", 0)))
    return rooms
