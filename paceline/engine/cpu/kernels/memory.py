"""Memory for weights and the KV cache in large pages, and prefetching.

A forward pass reads all weights once. With pages of 4 KiB products take longer (docs/architecture.md): addresses are
looked up for every page, and the processor's own prefetching restarts there.
"""

import contextlib
import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import compiled

# A large page.
PAGE_BYTES = 2 << 20
# A cache line: arrays begin at its multiples.
LINE_BYTES = 64
# The smallest region that is asked from the system.
REGION_BYTES = 16 * PAGE_BYTES


class Arena:
    """Packs arrays into shared pages. A region is freed with its last array."""

    def __init__(self) -> None:
        self._free = np.empty(0, np.uint8)

    def keep(self, array: Array) -> Array:
        """Returns a contiguous copy of the array in the arena."""
        kept = self.reserve(array.nbytes).view(array.dtype).reshape(array.shape)
        kept[...] = array
        return kept

    def reserve(self, num_bytes: int) -> Array:
        """Returns uninitialized bytes."""
        size = -(-num_bytes // LINE_BYTES) * LINE_BYTES
        if size > self._free.size:
            self._free = map_region(max(size, REGION_BYTES))
        kept, self._free = self._free[:num_bytes], self._free[size:]
        return kept


def map_region(num_bytes: int) -> Array:
    """Maps at least `num_bytes` zeros, in large pages if the system has them."""
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


def _type_fetch(typing_context: Any, array: Any, offset: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        start = context.make_array(array)(context, builder, args[0]).data
        byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
        address = builder.gep(builder.bitcast(start, byte), [args[1]])
        kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # To read, into the first cache, data.
        builder.call(prefetch, [address, word(0), word(3), word(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


_fetch_line: Callable[..., None] = intrinsic(_type_fetch)


@compiled(inline=True)
def fetch_rows(array: Array, first: int, num_rows: int) -> None:
    """Prefetches rows of a contiguous array: [rows, width]."""
    row_bytes = array.shape[1] * array.itemsize
    for offset in range(first * row_bytes, (first + num_rows) * row_bytes, LINE_BYTES):
        _fetch_line(array, offset)
