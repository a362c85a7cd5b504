"""A worker's start time and memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

# Of /proc/PID/status, in kB.
FIELDS = ("VmRSS", "RssAnon", "RssFile")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Covers all processes of a worker. File pages shared by two processes count twice."""

    name: str
    # Until it was ready: loading, and whatever it converts or compiles.
    start_s: float
    resident_mib: float
    # Of these, memory of its own, and pages of files, which the system may drop and read again.
    own_mib: float
    file_mib: float


def footprint(name: str, start_s: float, pids: Iterable[int]) -> Footprint:
    """Raises OSError for a process that has ended."""
    totals = dict.fromkeys(FIELDS, 0.0)
    for pid in pids:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            field, _, rest = line.partition(":")
            if field in totals:
                totals[field] += int(rest.split()[0]) / 1024
    return Footprint(name, start_s, *totals.values())


def footprint_table(footprints: Iterable[Footprint]) -> str:
    lines = [f"{'':30s} {'start s':>8s} {'resident MiB':>13s} {'own':>8s} {'of files':>9s}"]
    lines.extend(
        f"{each.name:30s} {each.start_s:8.1f} {each.resident_mib:13.0f} {each.own_mib:8.0f} {each.file_mib:9.0f}"
        for each in footprints
    )
    return "\n".join(lines)
