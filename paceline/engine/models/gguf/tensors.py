import math
import mmap
from dataclasses import dataclass, replace

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize, quant_shape_to_byte_shape

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.blocks import BLOCK_FORMATS
from paceline.engine.models.gguf.header import TensorPlace
from paceline.errors import ConfigError

FLOATS = tuple(GGMLQuantizationType[name] for name in ("F32", "F16", "BF16"))
FORMATS = (*FLOATS, *(each.type for each in BLOCK_FORMATS))


@dataclass(frozen=True, slots=True)
class FileTensor:
    # One of FORMATS.
    format: GGMLQuantizationType
    # As Hugging Face has it: [out_features, in_features] or [features].
    shape: tuple[int, ...]
    # [rows, bytes of a row] uint8, a view of the mapped file; a vector has one row.
    data: Array
    # [rows] int64: the file's row for each of our rows (a vector's: its feature); None: the same.
    row_order: Array | None = None

    @property
    def is_in_blocks(self) -> bool:
        return self.format not in FLOATS

    def __getitem__(self, order: Array) -> "FileTensor":
        """Returns these rows, as a tensor's: order [num_rows] int64."""
        rows = order if self.row_order is None else self.row_order[order]
        return replace(self, shape=(len(order), *self.shape[1:]), row_order=rows)

    def matrix(self, index: int) -> "FileTensor":
        """Returns a matrix of a stack: [num_matrices, out_features, in_features]."""
        num_rows = self.shape[1]
        return replace(self, shape=self.shape[1:], data=self.data[index * num_rows : (index + 1) * num_rows])

    def less(self, offset: float) -> "FileTensor":
        """Returns a vector's numbers less the offset, in memory."""
        values = self.dequantized() - np.float32(offset)
        return FileTensor(GGMLQuantizationType.F32, self.shape, values.view(np.uint8)[None])

    def dequantized(self) -> Array:
        """Returns all of it, in our order of rows: `shape` float32."""
        values = _numbers(self.data, self.format).reshape(self.shape)
        return values if self.row_order is None else values[self.row_order]

    def rows(self, ids: Array) -> Array:
        """Returns these rows of a matrix, dequantized: ids [n] int64 -> [n, in_features] float32."""
        return _numbers(self.data[ids if self.row_order is None else self.row_order[ids]], self.format)


# A tensor whose parts, one after the other in its next to last dimension, may have different formats.
Parts = tuple[FileTensor, ...]


def dequantized(tensor: FileTensor | Parts) -> Array:
    """Returns all of it, in float32."""
    if isinstance(tensor, FileTensor):
        return tensor.dequantized()
    return np.concatenate([part.dequantized() for part in tensor], axis=-2)


def file_tensor(file: mmap.mmap, place: TensorPlace, reordered_heads: int | None = None) -> FileTensor:
    """Maps a tensor. `reordered_heads`: number of heads whose rows llama.cpp's converter has reordered (see below).

    Raises ConfigError for an unsupported format, an impossible shape, or a truncated file.
    """
    if place.format not in FORMATS:
        raise ConfigError(
            f"tensor {place.name!r} has type {_format_name(place.format)}, which is not supported; "
            f"supported: {', '.join(known.name for known in FORMATS)}"
        )
    layout = GGMLQuantizationType(place.format)
    block = GGML_QUANT_SIZES[layout][0]
    if not place.shape or 0 in place.shape or place.shape[-1] % block:
        raise ConfigError(f"tensor {place.name!r} has shape {place.shape}, but {layout.name} has blocks of {block}")
    if reordered_heads and place.shape[0] % (2 * reordered_heads):
        raise ConfigError(f"tensor {place.name!r} has shape {place.shape}, which is not {reordered_heads} heads")
    *rows, row_bytes = quant_shape_to_byte_shape(place.shape, layout)
    num_rows = math.prod(rows)
    if place.offset_bytes + num_rows * row_bytes > len(file):
        raise ConfigError(f"the file is truncated in tensor {place.name!r}")
    data = np.frombuffer(file, np.uint8, num_rows * row_bytes, place.offset_bytes)
    row_order = _rotary_row_order(place.shape[0], reordered_heads) if reordered_heads else None
    return FileTensor(layout, place.shape, data.reshape(num_rows, row_bytes), row_order)


def _rotary_row_order(num_rows: int, num_heads: int) -> Array:
    """Returns the file's row for each of our rows of a projection that llama.cpp's converter has reordered.

    It interleaves the halves of a head. Example with one head of 6 rows: the file has ours as 0 3 1 4 2 5, so the
    result is 0 2 4 1 3 5.
    """
    return np.arange(num_rows).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _numbers(data: Array, layout: GGMLQuantizationType) -> Array:
    # float32 is the only format that comes as a view of the file.
    return np.require(dequantize(data, layout), np.float32, "W")


def _format_name(number: int) -> str:
    try:
        return GGMLQuantizationType(number).name
    except ValueError:
        return str(number)
