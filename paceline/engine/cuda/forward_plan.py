"""The forward plan: a batch's arrays on the GPU, moved in one copy.

A captured graph needs fixed addresses and shapes. Padding rows have position -1, attend to nothing, and are written to
the last block, which no sequence holds.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, TokenSpan

# Positions that one program of attention reads (see `paged_attention`).
ATTENTION_PART_TOKENS = 128
# Rows of one sequence in a tile of attention: in a round, and in a prompt's chunk, which has more than CHUNK_ROWS rows.
SMALL_TILE_ROWS, LARGE_TILE_ROWS, CHUNK_ROWS = 8, 16, 64


# Kernels need arrays aligned to this many bytes.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Field:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Mirror:
    """Arrays on the host and on the GPU, in one piece of memory each.

    They move in one copy: each takes the host several microseconds, however small it is.
    """

    def __init__(self, fields: Seq[Field], device: torch.device) -> None:
        """All arrays are zero at first."""
        total = sum(map(_aligned, fields))
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.on_host: list[Array] = [part.numpy() for part in _split(self._host, fields)]
        self.on_device = _split(self._device, fields)

    def send(self) -> None:
        self._device.copy_(self._host, non_blocking=True)

    def fetch(self) -> None:
        self._host.copy_(self._device, non_blocking=True)


def _split(memory: torch.Tensor, fields: Seq[Field]) -> list[torch.Tensor]:
    parts = memory.split([_aligned(field) for field in fields])
    return [
        part[: field.num_bytes].view(field.dtype).view(field.shape) for part, field in zip(parts, fields, strict=True)
    ]


def _aligned(field: Field) -> int:
    return -(-field.num_bytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class ForwardShape:
    num_rows: int
    num_wanted: int
    num_tiles: int
    # Parts of ATTENTION_PART_TOKENS positions in the longest sequence.
    num_parts: int
    # Rows of one sequence in a tile of attention.
    tile_rows: int = SMALL_TILE_ROWS

    @classmethod
    def of(
        cls, batch: Batch, batch_invariant: bool, num_ahead: int = 0, num_together: int = SMALL_TILE_ROWS
    ) -> "ForwardShape":
        """Returns the smallest shape for a batch and `num_ahead` further steps.

        With `batch_invariant` all tiles have the same number of rows. A tile has room for at least `num_together`.
        """
        _, counts, positions, _ = batch.extents.T
        longest, most = int((positions + counts).max()) + num_ahead, int(counts.max())
        is_large = num_together > SMALL_TILE_ROWS or (not batch_invariant and most > CHUNK_ROWS)
        tile_rows = LARGE_TILE_ROWS if is_large else SMALL_TILE_ROWS
        num_tiles = len(counts) if most <= tile_rows else int(_num_tiles(counts, tile_rows).sum())
        return cls(batch.num_tokens, len(batch.wanted), num_tiles, -(-longest // ATTENTION_PART_TOKENS), tile_rows)

    def table_width(self, block_size: int) -> int:
        return -(-self.num_parts * ATTENTION_PART_TOKENS // block_size)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    tokens: torch.Tensor  # [num_rows]
    positions: torch.Tensor  # [num_rows]
    slots: torch.Tensor  # [num_rows]: block * block_size + offset in the block
    wanted: torch.Tensor  # [num_wanted]: rows whose logits matter
    tiles: torch.Tensor  # [num_tiles, 4]: first row, number of rows, position of the first row, sequence's index
    tables: torch.Tensor  # [num_tiles, table_width]: the sequences' block tables, by sequence index
    num_parts: int
    tile_rows: int

    @property
    def num_tiles(self) -> int:
        return len(self.tiles)


PADDING_POSITION = -1


class Staging:
    def __init__(
        self, shape: ForwardShape, num_blocks: int, block_size: int, device: torch.device, more: Seq[Field] = ()
    ) -> None:
        """`more`: further arrays that move with the batch."""
        self.shape = shape
        self._block_size = block_size
        self._trash_slot = (num_blocks - 1) * block_size
        sizes = (
            (shape.num_rows,), (shape.num_rows,), (shape.num_rows,), (shape.num_wanted,),
            (shape.num_tiles, 4), (shape.num_tiles, shape.table_width(block_size)),
        )  # fmt: skip
        self._mirror = Mirror([*(Field(size, torch.int32) for size in sizes), *more], device)
        self._arrays, self.more_on_host = self._mirror.on_host[: len(sizes)], self._mirror.on_host[len(sizes) :]
        tokens, positions, slots, wanted, tiles, tables, *self.more_on_device = self._mirror.on_device
        self.plan = ForwardPlan(tokens, positions, slots, wanted, tiles, tables, shape.num_parts, shape.tile_rows)
        # The block table in each row of the tables.
        self._placed: list[list[int]] = [[] for _ in range(shape.num_tiles)]

    def fill(self, batch: Batch) -> None:
        """Writes a batch, which must fit the shape, and starts its copy to the GPU."""
        self.write(batch)
        self.send()

    def write(self, batch: Batch) -> None:
        tokens, positions, slots, wanted, tiles, tables = self._arrays
        count = min(batch.num_tokens, len(tokens))
        tokens[:count], tokens[count:] = batch.tokens[:count], 0
        num_wanted = len(batch.wanted)
        wanted[:num_wanted], wanted[num_wanted:] = batch.wanted, 0
        self._place_tables(batch.spans, tables)
        firsts, counts, starts, indices = batch.extents.T
        at, owners = np.arange(count) + (starts - firsts).repeat(counts), indices.repeat(counts)
        positions[:count], positions[count:] = at, PADDING_POSITION
        slots[:count] = tables[owners, at // self._block_size] * self._block_size + at % self._block_size
        slots[count:] = self._trash_slot
        own_tiles = _tile(batch.extents, self.shape.tile_rows)
        tiles[: len(own_tiles)], tiles[len(own_tiles) :] = own_tiles, 0
        padding = tiles[len(own_tiles) :][: len(tokens) - count]
        padding[:, 0], padding[:, 1], padding[:, 2] = count + np.arange(len(padding)), 1, PADDING_POSITION

    def send(self) -> None:
        self._mirror.send()

    def _place_tables(self, spans: Seq[TokenSpan], tables: Array) -> None:
        """Includes the blocks that are reserved for the next steps."""
        width = tables.shape[1]
        for index, span in enumerate(spans):
            # To compare a table is far cheaper than to convert it, and from step to step few change.
            if self._placed[index] != span.blocks:
                self._placed[index] = span.blocks.copy()
                used = span.blocks[:width]
                tables[index, : len(used)] = used


def _tile(extents: Array, tile_rows: int) -> Array:
    """Returns the tiles of all sequences, as in `ForwardPlan`: [num_tiles, 4]."""
    firsts, counts, starts, indices = extents.T
    if counts.max() <= tile_rows:
        # Each sequence is a tile.
        return extents
    num_tiles = _num_tiles(counts, tile_rows)
    owners, ends = indices.repeat(num_tiles), num_tiles.cumsum()
    done = tile_rows * (np.arange(ends[-1]) - (ends - num_tiles)[owners])
    return np.stack(
        (firsts[owners] + done, np.minimum(counts[owners] - done, tile_rows), starts[owners] + done, owners), axis=1
    )


def _num_tiles(counts: Array, tile_rows: int) -> Array:
    """Tiles of each sequence."""
    return -(-counts // tile_rows)
