"""Memory asked for before it is needed.

The processor's own prefetching begins anew at each page, and only after some reads. Attention reads a few KiB here and
a few there, and so would wait at the beginning of each.
"""

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.memory import LINE_BYTES
from paceline.engine.cpu.kernels.scalars import compiled


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
    """Asks for rows of a contiguous array: [rows, width], and does not wait for them."""
    row_bytes = array.shape[1] * array.itemsize
    for offset in range(first * row_bytes, (first + num_rows) * row_bytes, LINE_BYTES):
        _fetch_line(array, offset)
