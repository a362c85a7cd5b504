"""Each thread of the kernels on a core of its own.

Two model servers wake and sleep in turns, and the system may put both threads of one on the same core for a while, the
other core idle: one propose in eight took more than 1.5 times the median so, on two cores.
"""

from typing import Any

import numpy as np
import torch
from numba import prange, types

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.threads import CORES, num_workers

# Of the calling thread, which is number 0: int sched_setaffinity(pid_t, size_t, const cpu_set_t *).
_set_affinity: Any = types.ExternalFunction("sched_setaffinity", types.int32(types.int32, types.uintp, types.uintp))
# Bytes of a set of cores, a bit each.
SET_BYTES = 128
# Elements from which the library calls its own threads.
_SHARED_ELEMENTS = 1 << 22


def pin_workers() -> bool:
    """Pins this thread and those that it shares the kernels' work with, if they are as many as there are cores.

    Fewer would be put on some cores, by every server on the same. Returns whether it did; call it once, on the thread
    that computes.
    """
    if len(CORES) < 2 or num_workers() != len(CORES) or CORES[-1] >= 8 * SET_BYTES:
        return False
    # The library's threads begin now, with all cores: later they would begin where this one is held.
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
