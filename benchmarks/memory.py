"""Memory of processes, as the system counts it."""

from pathlib import Path


def resident_mib(pid: int) -> float:
    """Raises OSError or ValueError for a process that has ended."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise ValueError(f"process {pid} says nothing of its memory")
