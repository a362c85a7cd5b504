"""Pinning: each thread of the kernels stays on its own core.

Two model servers compute alternately. The system may then run both threads of one server on one core for a while, with
the other core idle. On two cores, one proposal in eight takes more than 1.5 times the median if threads are not pinned.
"""

from typing import Any

import numpy as np
import torch
from numba import prange, types

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.threads import CORES, num_workers

# int sched_setaffinity(pid_t, size_t, const cpu_set_t *); pid 0 is the calling thread.
_set_affinity: Any = types.ExternalFunction("sched_setaffinity", types.int32(types.int32, types.uintp, types.uintp))
# Size of a set of cores, with one bit per core.
SET_BYTES = 128
# With this many elements torch uses all its threads.
_SHARED_ELEMENTS = 1 << 22


def pin_workers() -> bool:
    """Pins this thread and the other threads of the kernels, if there are as many threads as cores.

    Fewer threads are not pinned: every server would pin them to the same cores. Returns whether it pinned them. Call it
    once, on the thread that computes.
    """
    if len(CORES) < 2 or num_workers() != len(CORES) or CORES[-1] >= 8 * SET_BYTES:
        return False
    # Start torch's threads before the pinning: a thread inherits the cores of the thread that starts it.
    torch.ones(_SHARED_ELEMENTS).exp_()
    sets = np.zeros((len(CORES), SET_BYTES), np.uint8)
    for worker, core in enumerate(CORES):
        sets[worker, core // 8] = 1 << core % 8
    failures = np.zeros(len(CORES), np.int32)
    _pin(sets, failures)
    return not failures.any()


@compiled(parallel=True)
def _pin(sets: Array, failures: Array) -> None:
    for worker in prange(sets.shape[0]):
        failures[worker] = _set_affinity(0, sets.shape[1], sets[worker].ctypes.data)
