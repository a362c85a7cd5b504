"""A tensor as it lies in a GGUF file."""

from dataclasses import dataclass

import numpy as np
from gguf import GGMLQuantizationType, quants

from paceline.engine.arrays import Array

# Formats of whole numbers in blocks, and of plain floats.
BLOCK_FORMATS = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
FLOAT_FORMATS = ("F32", "F16", "BF16")


@dataclass(frozen=True, slots=True, eq=False)
class FileTensor:
    """A matrix in blocks: a view of the mapped file, which is read when it is used."""

    # One of BLOCK_FORMATS.
    format: str
    # As Hugging Face has it: [out_features, in_features].
    shape: tuple[int, int]
    data: Array  # [out_features, bytes of a row] uint8
    # [out_features]: the file's row for each row of ours. llama.cpp keeps queries and keys in another order.
    row_order: Array | None = None

    def dequantised(self) -> Array:
        """[out_features, in_features] float32."""
        values: Array = quants.dequantize(self.data, GGMLQuantizationType[self.format])
        return values if self.row_order is None else values[self.row_order]


def as_float32(data: Array, kind: str, shape: tuple[int, ...]) -> Array:
    """A tensor in one of FLOAT_FORMATS, by its bytes."""
    if kind == "F32":
        return data.view(np.float32).reshape(shape)
    values: Array = quants.dequantize(data, GGMLQuantizationType[kind])
    return values.reshape(shape)
