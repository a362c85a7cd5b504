"""Where there is no GPU, Triton's interpreter runs the kernels: decided before any of them is imported."""

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch


def _sum_rows_alike(builder: Any) -> None:
    """On a GPU all rows of `tl.dot` are summed in the same order. The interpreter takes numpy's matmul, and on some
    processors the library below it gives a row other bits in another place of its tile. einsum's loops do not."""

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
        products = np.einsum("...ik,...kj->...ij", a.data, b.data, dtype=d.data.dtype)
        return type(d)(products + d.data, d.dtype.scalar)

    builder.create_dot = create_dot


if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    # `make test` puts it there.
    sys.path.append(str(Path(__file__).parents[3] / ".triton"))
    # Without it the tests are skipped, and say so.
    with contextlib.suppress(ImportError):
        from triton.runtime.interpreter import InterpreterBuilder

        _sum_rows_alike(InterpreterBuilder)
