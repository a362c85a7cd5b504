"""The number of compute threads, the same for torch and our kernels."""

import os
from pathlib import Path
from typing import Any

import numba
import torch
from numba import types

# Cores that this process may use. Read at import, because a pinned thread would see only its own core.
CORES = sorted(os.sched_getaffinity(0))

# As `num_workers`, for kernels: Numba's own function, by its symbol, which `numba.get_num_threads` loads. A kernel that
# calls that one can't be kept on disk.
numba.get_num_threads()
kernel_workers: Any = types.ExternalFunction("get_num_threads", types.intp())


def core_ids() -> list[str]:
    """Returns a name for each core, unique across hosts: HOST/CORE."""
    host = Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
    return [f"{host}/{core}" for core in CORES]


def num_workers() -> int:
    return torch.get_num_threads()


def set_num_workers(count: int) -> None:
    torch.set_num_threads(count)
    numba.set_num_threads(min(count, len(CORES)))
