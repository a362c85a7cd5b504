"""Memory bandwidth: all threads read, then copy, arrays larger than any cache.

python -m benchmarks.memory_bandwidth [--gib 1] [--threads N]

A decode step reads all weights once, so no engine decodes faster than `read` allows. A copy counts bytes read and
written. Each figure is the best of several passes, since other load only slows them.
"""

import argparse
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numba import njit

PASSES = 8


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """In GB/s."""

    read: float
    copy: float

    def __str__(self) -> str:
        return f"memory reads at {self.read:.1f} GB/s, copies at {self.copy:.1f} GB/s"


def measure_bandwidth(threads: int, gib: float = 1.0) -> Bandwidth:
    """`gib`: size of the array to read; a copy needs twice as much."""
    source = np.ones(int(gib * 2**30) // 4, np.float32)
    copy = np.zeros_like(source)
    _sum(source[:1])  # compiles it
    # Neither numpy nor what numba compiled holds the lock of the interpreter, so threads are enough.
    with ThreadPoolExecutor(threads) as pool:
        pieces = list(zip(np.array_split(source, threads), np.array_split(copy, threads), strict=True))

        def best_s(work: Callable[[tuple[np.ndarray, np.ndarray]], object]) -> float:
            return min(_seconds(lambda: list(pool.map(work, pieces))) for _ in range(PASSES))

        read_s = best_s(lambda chunk: _sum(chunk[0]))
        copy_s = best_s(lambda chunk: np.copyto(chunk[1], chunk[0]))
    return Bandwidth(source.nbytes / read_s / 1e9, 2 * source.nbytes / copy_s / 1e9)


@njit(nogil=True, fastmath=True)
def _sum(values: np.ndarray) -> np.float32:
    """Reads faster than any of numpy's functions."""
    total = np.float32(0)
    for i in range(len(values)):
        total += values[i]
    return total


def _seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=1.0, help="of the array that is read; a copy needs as much again")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    print(f"{arguments.threads} threads, {arguments.gib:g} GiB: {measure_bandwidth(arguments.threads, arguments.gib)}")


if __name__ == "__main__":
    main()
