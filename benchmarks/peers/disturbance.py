"""The share of CPU time that other processes take: speeds measured meanwhile are not reported."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")
# Columns of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
BUSY = (0, 1, 2, 5, 6, 7)


class Disturbance:
    """Counts from its creation."""

    def __init__(self, pids: Iterable[int]) -> None:
        """`pids`: processes that do not count as others."""
        self._pids = list(pids)
        self._started_s = time.perf_counter()
        self._at_start = self._others_ticks()

    def share(self) -> float:
        """Returns the share of all cores' time, other virtual machines included."""
        all_ticks = (time.perf_counter() - self._started_s) * TICKS_PER_S * (os.cpu_count() or 1)
        return max(0.0, (self._others_ticks() - self._at_start) / all_ticks)

    def _others_ticks(self) -> int:
        columns = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
        return sum(int(columns[i]) for i in BUSY) - sum(map(_ticks, self._pids))


def _ticks(pid: int) -> int:
    """Returns user and system time of a process with its threads; 0 once it has ended."""
    try:
        # The name before the last bracket may hold anything.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])
