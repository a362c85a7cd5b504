"""Memory for weights in large pages.

A forward reads all weights once. In pages of 4 KiB the processor looks up an address for every 64 lines of them, and
begins each page anew: a layer's products took a fifth longer so (docs/performance.md).
"""

import contextlib
import mmap

import numpy as np

from paceline.engine.arrays import Array

# Of a large page, of what arrays begin at, and the least that the system is asked for.
PAGE_BYTES = 2 << 20
LINE_BYTES = 64
REGION_BYTES = 16 * PAGE_BYTES


class Arena:
    """Arrays one behind the other, so that small ones share a page. A region is given back when its last array goes."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def keep(self, array: Array) -> Array:
        """A copy of it, contiguous."""
        num_bytes = -(-array.nbytes // LINE_BYTES) * LINE_BYTES
        if num_bytes > self._free.size:
            self._free = _map_region(max(num_bytes, REGION_BYTES))
        kept = self._free[: array.nbytes].view(array.dtype).reshape(array.shape)
        self._free = self._free[num_bytes:]
        kept[...] = array
        return kept


def _map_region(num_bytes: int) -> Array:
    """Of whole large pages, where the system has them; nothing of it is in use until it is written to."""
    # One page more, for the first to begin where a large one can.
    size = -(-num_bytes // PAGE_BYTES) * PAGE_BYTES + PAGE_BYTES
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # A system without large pages refuses; small ones do.
    with contextlib.suppress(OSError, AttributeError):
        region.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(region, np.uint8)
    return memory[-memory.ctypes.data % PAGE_BYTES :]


# Of all weights of this process.
weights = Arena()
