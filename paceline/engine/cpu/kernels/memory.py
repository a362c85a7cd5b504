"""Memory for weights and the KV cache, in large pages.

A forward reads all weights once. In pages of 4 KiB the processor must look up an address after every 64 cache lines,
and its prefetching starts again on each page. With such pages a layer's products take a fifth longer
(docs/tuning.md).
"""

import contextlib
import mmap

import numpy as np

from paceline.engine.arrays import Array

# A large page.
PAGE_BYTES = 2 << 20
# A cache line: arrays begin at its multiples.
LINE_BYTES = 64
# The smallest region that is asked from the system.
REGION_BYTES = 16 * PAGE_BYTES


class Arena:
    """Holds arrays one after the other, so that small ones share a page.

    A region is freed when its last array is deleted.
    """

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def keep(self, array: Array) -> Array:
        """Returns a contiguous copy of the array, in the arena's memory."""
        kept = self.reserve(array.nbytes).view(array.dtype).reshape(array.shape)
        kept[...] = array
        return kept

    def reserve(self, num_bytes: int) -> Array:
        """An array of so many bytes, whose content is not defined."""
        size = -(-num_bytes // LINE_BYTES) * LINE_BYTES
        if size > self._free.size:
            self._free = map_region(max(size, REGION_BYTES))
        kept, self._free = self._free[:num_bytes], self._free[size:]
        return kept


def map_region(num_bytes: int) -> Array:
    """At least so many bytes of zeros, in large pages if the system has them. A page takes memory only after the first write to it."""
    # One page more, so that the region can begin at a multiple of a large page.
    size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A system without large pages refuses; then small pages are used.
    with contextlib.suppress(OSError, AttributeError):
        region.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(region, np.uint8)
    return memory[-memory.ctypes.data % PAGE_BYTES :]


# Holds all weights of this process.
weights = Arena()
