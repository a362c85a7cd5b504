"""The processor's features, and pinning of the kernels' threads.

Two model servers compute in turns, and the system may run both threads of one on the same core. On two cores, one
proposal in eight takes more than 1.5 times the median if threads are not pinned.
"""

import platform
from typing import Any

import llvmlite.binding
import numpy as np
import torch
from numba import prange, types
from numba.core import config

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import compiled
from paceline.engine.threads import CORES, num_workers


def processor_features() -> frozenset[str]:
    """Returns LLVM's names of the processor's features, restricted to NUMBA_CPU_FEATURES if it is set."""
    present = frozenset(name for name, has in llvmlite.binding.get_host_cpu_features().items() if has)
    named: str | None = config.CPU_FEATURES  # type: ignore[attr-defined]
    if named is None:
        return present
    return present & {each[1:] for each in named.split(",") if each.startswith("+")}


def has_features(*names: str) -> bool:
    """Whether this is an x86 processor with all of these features."""
    return platform.machine() == "x86_64" and processor_features().issuperset(names)


# int sched_setaffinity(pid_t, size_t, const cpu_set_t *); pid 0 is the calling thread.
_set_affinity: Any = types.ExternalFunction("sched_setaffinity", types.int32(types.int32, types.uintp, types.uintp))
# Size of a set of cores, with one bit per core.
SET_BYTES = 128
# With this many elements torch uses all its threads.
_SHARED_ELEMENTS = 1 << 22


def pin_workers() -> bool:
    """Pins the kernels' threads if there is one for each core, and returns whether it did.

    Fewer threads are not pinned: every server would choose the same cores. Call it once, on the thread that computes.
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
