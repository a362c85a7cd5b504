"""Workers on cores of their own, in processes of their own: what is pinned stays so."""

import subprocess
import sys

import pytest

from paceline.engine.threads import CORES

pytestmark = pytest.mark.slow

needs_two = pytest.mark.skipif(len(CORES) < 2, reason="one core leaves nothing to share")

# Prints whether workers were pinned, and the cores that each may use after it.
PROGRAM = """
import os, sys, threading
import numpy as np
from numba import njit, prange, types
from paceline.engine.cpu.kernels.processor import SET_BYTES, pin_workers
from paceline.engine.threads import set_num_workers

get_affinity = types.ExternalFunction("sched_getaffinity", types.int32(types.int32, types.uintp, types.uintp))

@njit(parallel=True)
def read(sets):
    for worker in prange(sets.shape[0]):
        get_affinity(0, sets.shape[1], sets[worker].ctypes.data)

def run():
    count = int(sys.argv[1])
    set_num_workers(count)
    print(pin_workers())
    sets = np.zeros((count, SET_BYTES), np.uint8)
    read(sets)
    for each in sets:
        print(*np.flatnonzero(np.unpackbits(each, bitorder="little")))

thread = threading.Thread(target=run)
thread.start()
thread.join()
print(*sorted(os.sched_getaffinity(0)))
"""


def run(num_workers: int) -> list[str]:
    command = [sys.executable, "-c", PROGRAM, str(num_workers)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@needs_two
def test_each_worker_has_a_core_of_its_own_and_other_threads_have_all() -> None:
    pinned, *workers, main = run(len(CORES))
    assert pinned == "True"
    assert workers == [str(core) for core in CORES]
    assert main == " ".join(map(str, CORES))


@needs_two
def test_fewer_workers_than_cores_stay_free() -> None:
    pinned, *workers, _ = run(len(CORES) - 1)
    assert pinned == "False"
    assert set(workers) == {" ".join(map(str, CORES))}
