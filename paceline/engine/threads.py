"""How many CPU threads compute: the library's and the kernels' are the same number."""

import os

import numba
import torch

# Cores that this process may use, as it began: threads that were pinned later see fewer.
CORES = sorted(os.sched_getaffinity(0))


def num_workers() -> int:
    """Threads that a kernel may share its work among: as many as the library's products take."""
    return torch.get_num_threads()


def set_num_workers(count: int) -> None:
    """For kernels called from this thread, and for the library's products."""
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, len(CORES)))
